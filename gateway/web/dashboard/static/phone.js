// The pages of the browser phone. `phone-line.js` has the audio and the media socket.
"use strict";
const panel = document.getElementById("phone");
const part = (name) => panel.querySelector(`[data-part="${name}"]`);
const transcript = new Transcript(part("turns"), { caller: "You" });
const audioScript = panel.dataset.audio;
// A guest link carries its token after #, which browsers do not send. Remove it from the address bar at once.
const guestToken = panel.dataset.guest === undefined ? null : location.hash.slice(1);
if (guestToken) history.replaceState(null, "", location.pathname);

const KEYS = { 1: [697, 1209], 2: [697, 1336], 3: [697, 1477], 4: [770, 1209], 5: [770, 1336], 6: [770, 1477], 7: [852, 1209], 8: [852, 1336], 9: [852, 1477], "*": [941, 1209], 0: [941, 1336], "#": [941, 1477] };

async function showMemory(watchToken, heading, nothing) {
  const response = await fetch("/phone/memory", { headers: { Authorization: `Bearer ${watchToken}` }, cache: "no-store" });
  if (!response.ok) return;
  const { facts, calls } = await response.json();
  const list = part("memory");
  list.replaceChildren();
  part("memory-heading").textContent = heading;
  for (const fact of facts) list.append(make("li", "", fact));
  for (const call of calls) {
    const item = make("li", "");
    item.append(make("b", "", timeText(new Date(call.at), "moment")));
    item.append(make("span", "", ` ${[...new Set(call.about)].join(" · ")}`));
    list.append(item);
  }
  part("memory-empty").hidden = facts.length + calls.length > 0;
  part("memory-empty").textContent = nothing;
}

// One call, from the click to its post-call processing.
class Call {
  constructor() {
    // Read now: form fields are disabled during the call.
    this.request = guestToken === null ? new URLSearchParams(new FormData(part("who"))) : new URLSearchParams({ pass: guestToken });
    this.nothing = this.request.get("withheld") ? "Nothing is remembered of a hidden number." : "Nothing yet.";
    this.following = new AbortController();
    this.responseTimes = []; // in seconds
    this.ended = false;
  }

  async place() {
    show("calling", "Opening the microphone…");
    this.audio = await AudioDevice.open(audioScript, {
      frame: (data) => this.frame(data),
      reached: (name) => this.media?.send("mark", { name }),
      gone: () => this.hangUp("The microphone was disconnected. Connect it, then call again.", true),
    });
    if (this.ended) return this.audio.close(); // hung up while the browser asked for permission
    show("calling", "Calling…");
    this.placed = await this.placeCall();
    if (this.ended) return;
    transcript.list.replaceChildren();
    await this.subscribe();
    if (this.ended) return;
    this.media = new MediaSocket(location.origin, this.placed, {
      media: (audio) => this.audio.post({ audio }),
      mark: (mark) => this.audio.post({ mark }),
      clear: () => this.audio.post({ clear: true }),
      // When the gateway hangs up, a hangup event arrives too. Without one the connection was lost.
      closed: () => setTimeout(() => this.end("The connection to the gateway was lost.", true), 1000),
    });
  }

  async placeCall() {
    const response = await fetch(guestToken === null ? "/phone/call" : "/phone/guest/call", { method: "POST", body: this.request });
    if (!response.ok) throw new CallError(await response.text());
    return response.json();
  }

  // Resolves once no event can be missed, or after a second: the call matters more than its transcript.
  subscribe() {
    return new Promise((ready) => {
      setTimeout(ready, 1000);
      const { signal } = this.following;
      const request = (since) => fetch("/phone/events", {
        headers: { Authorization: `Bearer ${this.placed.watch}`, ...(since && { "Last-Event-ID": since }) }, signal, cache: "no-store",
      });
      follow(request, (event) => (event.event === "following" ? ready() : this.handle(event)), signal).then(ready);
    });
  }

  frame({ frame, you, agent }) {
    this.media?.send("media", { payload: textOf(frame) });
    part("you").value = you;
    part("agent").value = agent;
  }

  timed(event) {
    if (typeof event.latency !== "number" || event.counted_from !== "voice") return;
    this.responseTimes.push(event.latency);
    const median = [...this.responseTimes].sort((one, other) => one - other)[Math.floor((this.responseTimes.length - 1) / 2)];
    part("latency").textContent = `Response time: ${milliseconds(median)} median (${many(this.responseTimes.length, "answer")})`;
  }

  handle(event) {
    switch (event.event) {
      case "answered":
        this.since ??= Date.now();
        this.clock ??= setInterval(() => this.tick(), 500);
        this.tick();
        break;
      case "memory":
        transcript.memory(event);
        showMemory(this.placed.watch, `What ${clean(event.agent)} remembers`, this.nothing);
        break;
      case "turn": transcript.turn(event); this.timed(event); break;
      case "answer_started": transcript.timed(event); this.timed(event); break;
      case "interruption": transcript.interrupted(event); break;
      case "function_called": transcript.functionCalled(event); break;
      case "function_finished": transcript.functionFinished(event); break;
      case "engine_lost": transcript.note("Voice engine lost; reconnecting"); break;
      case "error": transcript.problem(event); break;
      case "hangup":
        this.end("");
        if (call === this && !part("status").classList.contains("bad")) part("status").textContent = `Call ended: ${clean(event.reason)}.`;
        break;
      case "finished":
        showMemory(this.placed.watch, "What the agent remembers now", this.nothing);
        transcript.note("Call processed. Call again to hear what the agent remembers.");
        if (guestToken === null) {
          part("call-page").href = `/calls/${this.placed.session.replace("voice-session:", "")}`;
          part("call-page").hidden = false;
          showName(); // the caller may have given one
        }
        this.following.abort();
        break;
      default:
    }
  }

  tick() {
    const seconds = Math.floor((Date.now() - this.since) / 1000);
    show("talking", `Connected, ${clock(seconds)}`);
  }

  mute(muted) { this.audio?.post({ muted }); }

  press(key) {
    this.audio?.tone(KEYS[key]);
    this.media?.send("dtmf", { track: "inbound_track", digit: key });
  }

  hangUp(message = "You hung up.", bad = false) {
    if (this.media) this.media.hangUp();
    this.end(message, bad);
  }

  end(message, bad = false) {
    if (this.ended) return;
    this.ended = true;
    clearInterval(this.clock);
    this.audio?.close();
    if (this.media) this.media.socket.close();
    else this.following.abort();
    for (const name of ["you", "agent"]) part(name).value = 0;
    part("mute").setAttribute("aria-pressed", "false");
    show(guestToken === null || !this.media ? "idle" : "used", message, bad);
  }
}

let call = null;

function show(state, message, bad = false) {
  panel.dataset.state = state;
  part("status").textContent = message;
  part("status").classList.toggle("bad", bad);
  part("call").hidden = state === "calling" || state === "talking" || state === "used";
  part("hang-up").hidden = !(state === "calling" || state === "talking");
  part("mute").disabled = state !== "talking";
  for (const key of panel.querySelectorAll("[data-key]")) key.disabled = state !== "talking";
  for (const field of panel.querySelectorAll("[data-part='who'] input, [data-part='who'] select")) field.disabled = state === "calling" || state === "talking";
}

async function startCall(event) {
  event?.preventDefault();
  if (call && !call.ended) return;
  call?.following.abort(); // a call that is not saved sends no finished event
  part("call-page").hidden = true;
  const mine = (call = new Call());
  try {
    await mine.place();
  } catch (error) {
    mine.end(error instanceof CallError ? error.message : "The gateway does not respond. Is it running?", true);
  }
}

// The name of the number to call as, if it is known.
async function showName() {
  const { caller, form_token: token } = part("who");
  const asked = caller.value;
  const body = new URLSearchParams({ caller: asked, form_token: token.value });
  const response = caller.validity.valid ? await fetch("/phone/name", { method: "POST", body }).catch(() => null) : null;
  if (asked === caller.value) part("caller-name").textContent = response?.ok ? clean(await response.text()) : "";
}

part("who")?.caller.addEventListener("input", showName);
part("who")?.addEventListener("submit", startCall);
if (!part("who")) part("call").addEventListener("click", startCall);
part("hang-up").addEventListener("click", () => call?.hangUp());
part("mute").addEventListener("click", (event) => {
  const muted = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", String(muted));
  call?.mute(muted);
});
for (const key of panel.querySelectorAll("[data-key]")) key.addEventListener("click", () => call?.press(key.dataset.key));
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (typing || panel.dataset.state !== "talking" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (KEYS[event.key]) call.press(event.key);
  else if (event.key === "m") part("mute").click();
});
addEventListener("pagehide", () => { if (call && !call.ended) call.hangUp(); });

part("link")?.addEventListener("click", async () => {
  if (!part("who").reportValidity()) return;
  const response = await fetch("/phone/link", { method: "POST", body: new URLSearchParams(new FormData(part("who"))) });
  const text = await response.text();
  const field = part("link-address");
  part("link-shown").hidden = !response.ok;
  if (!response.ok) return show("idle", text, true);
  field.value = text;
  field.select();
});
if (guestToken === "") show("used", "This page needs a link. Open your link again, or ask for a new one.", true);
else show("idle", "");
