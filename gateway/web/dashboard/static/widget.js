// The browser phone as a button on another website. It follows transcript.js and phone-line.js in one script, /widget.js.
// No inline style or markup: it works with a strict content security policy. Page and widget can't restyle each other.
"use strict";
const script = document.currentScript;
const options = script.dataset;
const gateway = new URL(".", script.src).href.replace(/\/$/, "");

const TEXTS = {
  en: {
    label: "Talk to us", microphone: "Waiting for your microphone…", calling: "Calling…", connected: "Connected", muted: "Connected, muted",
    mute: "Mute", hangUp: "Hang up", again: "Call again", close: "Close", transcript: "Transcript", you: "You", agent: "Agent", ended: "The call has ended.",
    NotAllowedError: "This page is not allowed to use your microphone. Allow it in the browser's settings for this page, then call again.",
    NotFoundError: "No microphone found. Connect one, then call again.",
    NotReadableError: "Another program is using the microphone. Close it, then call again.",
    InsecurePage: "Calls need a secure connection. Open this page with https.",
    audio: "The browser can't play or record sound here. Try another browser.", gone: "The microphone was disconnected.",
    busy: "All lines are busy. Try again in a moment.", refused: "The call could not be started. Reload the page, then call again.",
    unavailable: "Calls are not possible right now. Try again later.", lost: "The connection was lost. Call again to continue.",
  },
  de: {
    label: "Sprechen Sie mit uns", microphone: "Warten auf Ihr Mikrofon …", calling: "Anruf wird aufgebaut …", connected: "Verbunden", muted: "Verbunden, stumm",
    mute: "Stumm", hangUp: "Auflegen", again: "Erneut anrufen", close: "Schließen", transcript: "Gesprächstext", you: "Sie", agent: "Agent", ended: "Der Anruf ist beendet.",
    NotAllowedError: "Diese Seite darf Ihr Mikrofon nicht verwenden. Erlauben Sie es in den Browsereinstellungen für diese Seite und rufen Sie erneut an.",
    NotFoundError: "Kein Mikrofon gefunden. Schließen Sie eines an und rufen Sie erneut an.",
    NotReadableError: "Ein anderes Programm verwendet das Mikrofon. Schließen Sie es und rufen Sie erneut an.",
    InsecurePage: "Anrufe brauchen eine sichere Verbindung. Öffnen Sie diese Seite mit https.",
    audio: "Der Browser kann hier keinen Ton abspielen oder aufnehmen. Versuchen Sie einen anderen Browser.", gone: "Das Mikrofon wurde getrennt.",
    busy: "Alle Leitungen sind belegt. Versuchen Sie es gleich noch einmal.", refused: "Der Anruf konnte nicht beginnen. Laden Sie die Seite neu und rufen Sie erneut an.",
    unavailable: "Anrufe sind gerade nicht möglich. Versuchen Sie es später.", lost: "Die Verbindung ist abgebrochen. Rufen Sie erneut an.",
  },
  es: {
    label: "Hable con nosotros", microphone: "Esperando el micrófono…", calling: "Llamando…", connected: "Conectado", muted: "Conectado, en silencio",
    mute: "Silenciar", hangUp: "Colgar", again: "Volver a llamar", close: "Cerrar", transcript: "Transcripción", you: "Usted", agent: "Agente", ended: "La llamada ha terminado.",
    NotAllowedError: "Esta página no puede usar el micrófono. Permítalo en los ajustes del navegador y vuelva a llamar.",
    NotFoundError: "No se encontró ningún micrófono. Conecte uno y vuelva a llamar.",
    NotReadableError: "Otro programa está usando el micrófono. Ciérrelo y vuelva a llamar.",
    InsecurePage: "Las llamadas necesitan una conexión segura. Abra esta página con https.",
    audio: "El navegador no puede reproducir o grabar sonido aquí. Pruebe otro navegador.", gone: "Se desconectó el micrófono.",
    busy: "Todas las líneas están ocupadas. Inténtelo de nuevo en un momento.", refused: "No se pudo iniciar la llamada. Recargue la página y vuelva a llamar.",
    unavailable: "Ahora no es posible llamar. Inténtelo más tarde.", lost: "Se perdió la conexión. Vuelva a llamar.",
  },
  fr: {
    label: "Parlez-nous", microphone: "En attente du microphone…", calling: "Appel en cours…", connected: "Connecté", muted: "Connecté, micro coupé",
    mute: "Couper le micro", hangUp: "Raccrocher", again: "Rappeler", close: "Fermer", transcript: "Transcription", you: "Vous", agent: "Agent", ended: "L'appel est terminé.",
    NotAllowedError: "Cette page ne peut pas utiliser le microphone. Autorisez-le dans les réglages du navigateur, puis rappelez.",
    NotFoundError: "Aucun microphone trouvé. Branchez-en un, puis rappelez.",
    NotReadableError: "Un autre programme utilise le microphone. Fermez-le, puis rappelez.",
    InsecurePage: "Les appels demandent une connexion sécurisée. Ouvrez cette page en https.",
    audio: "Le navigateur ne peut pas lire ou enregistrer de son ici. Essayez un autre navigateur.", gone: "Le microphone a été débranché.",
    busy: "Toutes les lignes sont occupées. Réessayez dans un instant.", refused: "L'appel n'a pas pu commencer. Rechargez la page, puis rappelez.",
    unavailable: "Les appels ne sont pas possibles pour le moment. Réessayez plus tard.", lost: "La connexion a été perdue. Rappelez pour continuer.",
  },
};
const language = (options.lang || document.documentElement.lang || navigator.language).slice(0, 2).toLowerCase();
const words = TEXTS[language] || TEXTS.en;
const label = options.label || words.label;

const STYLE = `
:host {
  all: initial; position: fixed; z-index: 2147483000; right: max(16px, env(safe-area-inset-right)); bottom: max(16px, env(safe-area-inset-bottom));
  --surface: #fff; --text: #12161d; --muted: #525c6b; --line: #dfe4ea; --raised: #f1f3f6; --bad: #b8193f; --bad-ink: #fff;
  --accent: var(--voice-accent, #3d50d8); --accent-ink: var(--voice-accent-ink, #fff); --caller: #ab5008; --shadow: 0 8px 28px rgb(18 22 29 / 22%);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: var(--text);
}
:host([data-inline]) { position: static; display: block; z-index: auto }
@media (prefers-color-scheme: dark) {
  :host {
    --surface: #161b23; --text: #e8ebf0; --muted: #a4aebd; --line: #2b3440; --raised: #222a35; --bad: #ff8aa4; --bad-ink: #0d1015;
    --accent: var(--voice-accent, #93a3ff); --accent-ink: var(--voice-accent-ink, #0d1015); --caller: #f4a259; --shadow: 0 8px 28px rgb(0 0 0 / 55%);
  }
}
*, ::before, ::after { box-sizing: border-box }
[hidden] { display: none !important }
p, ol, h2 { margin: 0; padding: 0; list-style: none }
button {
  font: inherit; font-weight: 600; min-height: 48px; min-width: 48px; padding: 0 18px; border: 1px solid transparent; border-radius: 24px; cursor: pointer;
  display: inline-flex; align-items: center; justify-content: center; gap: 9px; color: var(--text); background: var(--raised);
}
button:focus-visible, ol:focus-visible { outline: 3px solid var(--accent); outline-offset: 3px }
button:disabled { opacity: .55; cursor: default }
svg { width: 20px; height: 20px; fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; flex: none }
.launch, .again { color: var(--accent-ink); background: var(--accent) }
.launch { min-height: 56px; padding: 0 24px 0 20px; border-radius: 28px; box-shadow: var(--shadow); max-width: calc(100vw - 32px) }
.panel {
  display: flex; flex-direction: column; gap: 14px; width: 348px; max-width: calc(100vw - 32px); max-height: calc(100vh - 32px);
  max-height: calc(100dvh - 32px); padding: 16px; background: var(--surface); border: 1px solid var(--line); border-radius: 22px; box-shadow: var(--shadow);
}
.head { display: grid; grid-template-columns: 48px minmax(0, 1fr) auto; gap: 12px; align-items: center }
.orb { position: relative; display: grid; place-items: center; width: 48px; height: 48px; border-radius: 50%; color: var(--accent-ink); background: var(--accent) }
.orb::before {
  content: ""; position: absolute; inset: 0; border-radius: 50%; background: var(--accent); opacity: .28;
  transform: scale(calc(1 + var(--level, 0) * .38)); transition: transform 90ms linear;
}
.orb svg { position: relative }
.panel[data-state="ended"] .orb { color: var(--muted); background: var(--raised) }
.panel[data-state="ended"] .orb::before { display: none }
h2 { font: inherit; font-weight: 650; overflow-wrap: anywhere }
.status { color: var(--muted); font-size: 14px }
.status.bad { color: var(--bad) }
.time { font-variant-numeric: tabular-nums; color: var(--muted); font-size: 14px }
.close { min-width: 44px; min-height: 44px; padding: 0; border-radius: 50%; background: none; color: var(--muted) }
.turns { overflow-y: auto; display: grid; align-content: start; gap: 10px; min-height: 96px; max-height: 264px; padding: 12px; border-radius: 14px; background: var(--raised) }
.turn { overflow-wrap: anywhere }
.by { font-size: 12.5px; color: var(--accent) }
.turn.caller .by { color: var(--caller) }
.event { font-size: 13px; color: var(--muted) }
.said s { color: var(--muted) }
.buttons { display: flex; gap: 10px }
.buttons button { flex: 1 }
.mute[aria-pressed="true"] { border-color: var(--text) }
.hang-up { color: var(--bad-ink); background: var(--bad) }
@media (hover: hover) { button:not(:disabled):hover { filter: brightness(.94) } }
@media (prefers-reduced-motion: no-preference) {
  .panel { animation: rise .18s ease-out }
  .panel[data-state="starting"] .orb::before { animation: ring 1.3s ease-out infinite }
  @keyframes rise { from { opacity: 0; transform: translateY(8px) } }
  @keyframes ring { from { transform: scale(1); opacity: .45 } to { transform: scale(1.4); opacity: 0 } }
}
@media (prefers-reduced-motion: reduce) { .orb::before { transform: none; transition: none } }
@media (forced-colors: active) { button, .panel, .turns { border: 1px solid ButtonText } .orb { border: 1px solid CanvasText } }
`;
const ICONS = {
  phone: "M6.5 3.5 9 3l1.6 4.2-2 1.6a12 12 0 0 0 6.6 6.6l1.6-2L21 15l-.5 2.6A3 3 0 0 1 17.5 20 14 14 0 0 1 4 6.5a3 3 0 0 1 2.5-3Z",
  microphone: "M12 3a3 3 0 0 0-3 3v5a3 3 0 0 0 6 0V6a3 3 0 0 0-3-3ZM5.5 11a6.5 6.5 0 0 0 13 0M12 17.5V21",
  close: "M6 6l12 12M18 6 6 18",
};

function icon(name) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  picture.setAttribute("viewBox", "0 0 24 24");
  picture.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  picture.append(path);
  return picture;
}

function makeButton(className, text, picture, act) {
  const button = make("button", className, text);
  button.type = "button";
  if (picture) button.prepend(icon(picture));
  button.addEventListener("click", act);
  return button;
}

async function post(address, fields, signal) {
  return fetch(gateway + address, { method: "POST", body: new URLSearchParams(fields), credentials: "omit", cache: "no-store", signal });
}

// The words for a failed request, by its status.
const problemOf = (status) => (status === 429 ? "busy" : status >= 500 ? "unavailable" : "refused");

// One call, from the click to its end.
class WidgetCall {
  constructor(view) {
    this.view = view;
    this.following = new AbortController();
    this.ended = false;
  }

  async place() {
    this.view.show("starting", words.microphone);
    this.audio = await AudioDevice.open(`${gateway}/widget/audio.js`, {
      frame: ({ frame, you, agent }) => {
        this.media?.send("media", { payload: textOf(frame) });
        this.view.level(Math.max(you, agent));
      },
      reached: (name) => this.media?.send("mark", { name }),
      gone: () => this.hangUp("gone"),
    });
    if (this.ended) return this.audio.close(); // hung up while the browser asked for permission
    this.view.show("starting", words.calling);
    const placed = await this.placeCall();
    if (this.ended) return;
    if (this.view.transcript) this.follow(placed.watch);
    this.media = new MediaSocket(gateway, placed, {
      media: (audio) => {
        this.view.answered();
        this.audio.post({ audio });
      },
      mark: (mark) => this.audio.post({ mark }),
      clear: () => this.audio.post({ clear: true }),
      closed: ({ code }) => this.end(code === 1000 ? "ended" : "lost"),
    });
  }

  // The website's server decides who its user is, and asks the gateway for a token.
  async placeCall() {
    const request = { method: "POST", credentials: "same-origin", cache: "no-store" };
    const site = await fetch(options.tokenUrl, { ...request, headers: { "Content-Type": "application/json" }, body: JSON.stringify({ agent: options.agent || "" }) });
    if (!site.ok) throw new CallError("", problemOf(site.status));
    const response = await post("/widget/call", { token: (await site.json()).token });
    if (!response.ok) throw new CallError("", problemOf(response.status));
    return response.json();
  }

  follow(watch) {
    const { signal } = this.following;
    const show = (event) => {
      if (event.event === "turn") this.view.transcript.turn(event);
      if (event.event === "interruption") this.view.transcript.interrupted(event);
    };
    follow((since) => post("/widget/events", { watch, since }, signal), show, signal);
  }

  mute(muted) { this.audio?.post({ muted }); }

  hangUp(reason = "ended") {
    this.media?.hangUp();
    this.end(reason);
  }

  end(reason) {
    if (this.ended) return;
    this.ended = true;
    this.audio?.close();
    this.media?.socket.close();
    setTimeout(() => this.following.abort(), 1000); // the last words may be under way
    this.view.show("ended", words[reason] || words.unavailable, reason !== "ended");
  }
}

class WidgetView {
  constructor() {
    this.host = document.createElement("voice-widget");
    const root = this.host.attachShadow({ mode: "open" });
    const style = new CSSStyleSheet();
    style.replaceSync(STYLE);
    root.adoptedStyleSheets = [style];
    this.launch = makeButton("launch", label, "phone", () => this.call());
    this.panel = make("section", "panel");
    this.panel.setAttribute("aria-label", label);
    this.panel.hidden = true;
    root.append(this.launch, this.panel);
    this.build();
    this.panel.addEventListener("keydown", (event) => { if (event.key === "Escape" && this.current.ended) this.close(); });
    addEventListener("pagehide", () => this.current?.hangUp());
  }

  build() {
    this.orb = make("span", "orb");
    this.orb.append(icon("phone"));
    this.status = make("p", "status");
    this.status.setAttribute("role", "status");
    this.time = make("span", "time");
    this.time.setAttribute("role", "timer");
    this.closeButton = makeButton("close", undefined, "close", () => this.close());
    this.closeButton.setAttribute("aria-label", words.close);
    this.muteButton = makeButton("mute", words.mute, "microphone", () => this.mute(this.muteButton.getAttribute("aria-pressed") !== "true"));
    this.hangUpButton = makeButton("hang-up", words.hangUp, "", () => this.current.hangUp());
    this.againButton = makeButton("again", words.again, "phone", () => this.call());
    const [head, title, buttons] = [make("div", "head"), make("div", ""), make("div", "buttons")];
    title.append(make("h2", "", label), this.status);
    head.append(this.orb, title, this.time, this.closeButton);
    buttons.append(this.muteButton, this.hangUpButton, this.againButton);
    this.panel.append(head);
    if (options.transcript !== undefined && options.transcript !== "false") {
      const turns = make("ol", "turns");
      turns.tabIndex = 0;
      turns.setAttribute("aria-label", words.transcript);
      turns.setAttribute("aria-live", "polite");
      this.transcript = new Transcript(turns, { caller: words.you, agent: words.agent });
      this.panel.append(turns);
    }
    this.panel.append(buttons);
  }

  async call() {
    if (this.current && !this.current.ended) return;
    this.transcript?.list.replaceChildren();
    const mine = (this.current = new WidgetCall(this));
    try {
      await mine.place();
    } catch (error) {
      // Anything else is a request that failed: there is no network, or the token is for another website.
      mine.end(error instanceof CallError ? (words[error.reason] ? error.reason : "audio") : "unavailable");
    }
  }

  show(state, text, bad = false) {
    const before = this.panel.dataset.state;
    this.panel.dataset.state = state;
    this.launch.hidden = true;
    this.panel.hidden = false;
    this.status.textContent = text;
    this.status.classList.toggle("bad", bad);
    const over = state === "ended";
    this.muteButton.hidden = this.hangUpButton.hidden = this.time.hidden = over;
    this.closeButton.hidden = this.againButton.hidden = !over;
    this.muteButton.disabled = state !== "talking";
    if (this.transcript) this.transcript.list.hidden = !this.transcript.list.children.length && state !== "talking";
    if (over || state === "starting") {
      clearInterval(this.clock);
      this.clock = undefined;
      this.time.textContent = "";
      this.muteButton.setAttribute("aria-pressed", "false");
      this.level(0);
    }
    if (before !== state && state !== "talking") (over ? this.againButton : this.hangUpButton).focus();
  }

  // With the first sound of the agent.
  answered() {
    if (this.clock !== undefined) return;
    const since = Date.now();
    const tick = () => { this.time.textContent = clock((Date.now() - since) / 1000); };
    this.clock = setInterval(tick, 500);
    this.show("talking", words.connected);
    tick();
  }

  mute(muted) {
    this.muteButton.setAttribute("aria-pressed", String(muted));
    this.status.textContent = muted ? words.muted : words.connected;
    this.current.mute(muted);
  }

  level(value) { this.orb.style.setProperty("--level", value.toFixed(2)); }

  close() {
    this.panel.hidden = true;
    delete this.panel.dataset.state;
    this.launch.hidden = false;
    this.launch.focus();
  }
}

function start() {
  const place = options.target ? document.querySelector(options.target) : null;
  const { host } = new WidgetView();
  host.toggleAttribute("data-inline", place !== null);
  (place || document.body).append(host);
}

if (!options.tokenUrl) console.error("widget.js needs data-token-url, an address of your server that returns a token");
else if (document.body) start();
else document.addEventListener("DOMContentLoaded", start);
