// The browser phone: a call on a media socket of the gateway, as a carrier's would be, and what happens in it.
"use strict";
const panel = document.getElementById("phone");
const part = (name) => panel.querySelector(`[data-part="${name}"]`);
const talk = new Transcript(part("turns"), { caller: "You" });
const audioScript = panel.dataset.audio;
// The pass of a link stands behind #, which nobody is sent. It goes from the address bar at once.
const guestPass = panel.dataset.guest === undefined ? null : location.hash.slice(1);
if (guestPass) history.replaceState(null, "", location.pathname);

const WHY_NO_MICROPHONE = {
  NotAllowedError: "The browser was not allowed to use the microphone. Allow it for this page (the sign beside the address), and call again.",
  NotFoundError: "There is no microphone. Plug one in, or choose one in the system's settings, and call again.",
  NotReadableError: "Another program holds the microphone. Close it, and call again.",
  OverconstrainedError: "This microphone can't be used. Choose another one, and call again.",
  SecurityError: "The browser gives this page no microphone. Its settings forbid it.",
};
const KEYS = { 1: [697, 1209], 2: [697, 1336], 3: [697, 1477], 4: [770, 1209], 5: [770, 1336], 6: [770, 1477], 7: [852, 1209], 8: [852, 1336], 9: [852, 1477], "*": [941, 1209], 0: [941, 1336], "#": [941, 1477] };

const SPEAKS = 0.4; // how loud somebody is who speaks: -40 dB

class Trouble extends Error {}

function bytesOf(text) { return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)); }
function textOf(bytes) { return btoa(String.fromCharCode(...bytes)); }

function inTime(promise, otherwise) {
  return Promise.race([promise, new Promise((_, fail) => setTimeout(() => fail(new Trouble(otherwise)), 5000))]);
}

async function microphone() {
  if (!navigator.mediaDevices) throw new Trouble("A browser gives the microphone to pages with https alone, or on this very machine (http://localhost). Open the page so.");
  try {
    const wanted = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    return await navigator.mediaDevices.getUserMedia({ audio: wanted });
  } catch (error) {
    throw new Trouble(WHY_NO_MICROPHONE[error.name] || `The microphone can't be used: ${error.name}.`);
  }
}

// Microphone and loudspeaker. `frame` is called fifty times a second, `reached` with each mark that was played, `gone`
// when there is no microphone any more.
class Sound {
  static async open({ frame, reached, gone }) {
    const stream = await microphone();
    const sound = new Sound();
    sound.stream = stream;
    for (const track of stream.getTracks()) track.onended = gone;
    try {
      sound.context = new AudioContext({ latencyHint: "interactive" });
      await inTime(sound.context.resume(), "There is no loudspeaker that the browser can use. Plug one in, and call again.");
      await sound.context.audioWorklet.addModule(audioScript);
      sound.node = new AudioWorkletNode(sound.context, "phone", { numberOfInputs: 1, numberOfOutputs: 1, outputChannelCount: [1] });
      sound.node.port.onmessage = ({ data }) => (data.mark ? reached(data.mark) : frame(data));
      sound.context.createMediaStreamSource(stream).connect(sound.node).connect(sound.context.destination);
    } catch (error) {
      sound.close();
      throw error instanceof Trouble ? error : new Trouble(`The browser can't play or record sound here: ${error.message}`);
    }
    return sound;
  }

  tell(message) { this.node.port.postMessage(message); }

  tone(frequencies) {
    const gain = this.context.createGain();
    gain.gain.value = 0.08;
    gain.connect(this.context.destination);
    for (const frequency of frequencies) {
      const oscillator = this.context.createOscillator();
      oscillator.frequency.value = frequency;
      oscillator.connect(gain);
      oscillator.start();
      oscillator.stop(this.context.currentTime + 0.12);
    }
  }

  close() {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.node) this.tell({ over: true });
    if (this.context) this.context.close();
  }
}

// The media socket, as Twilio's streams are.
class Line {
  constructor(placed, { media, mark, clear, closed }) {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.stream = `stream-${placed.call_id}`;
    this.socket = new WebSocket(`${scheme}://${location.host}${placed.media_path}`);
    this.socket.onopen = () => {
      this.send("start", {
        accountSid: placed.account_id, callSid: placed.call_id, streamSid: this.stream, tracks: ["inbound"],
        mediaFormat: { encoding: "audio/x-mulaw", sampleRate: 8000, channels: 1 }, customParameters: { token: placed.token },
      });
    };
    this.socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.event === "media") media(bytesOf(message.media.payload));
      else if (message.event === "mark") mark(message.mark.name);
      else if (message.event === "clear") clear();
    };
    this.socket.onclose = closed;
  }

  send(event, content) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ event, streamSid: this.stream, [event]: content }));
  }

  hangUp() {
    this.send("stop", {});
    this.socket.close(1000);
  }
}

// Server-sent events with a pass in a header: the browser's own reader of them would need it in the address.
async function follow(watch, react, signal) {
  let since = "";
  for (;;) {
    try {
      const headers = { Authorization: `Bearer ${watch}`, ...(since && { "Last-Event-ID": since }) };
      const answer = await fetch("/phone/events", { headers, signal, cache: "no-store" });
      if (!answer.ok) return;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const fields = Object.fromEntries(block.split("\n").map((line) => [line.split(":")[0], line.slice(line.indexOf(":") + 1).trim()]));
          if (fields.id) since = fields.id;
          if (fields.data) react(JSON.parse(fields.data));
          else if (fields.id) react({ event: "following" });
        }
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

async function showMemory(watch, heading) {
  const answer = await fetch("/phone/memory", { headers: { Authorization: `Bearer ${watch}` }, cache: "no-store" });
  if (!answer.ok) return;
  const { facts, calls } = await answer.json();
  const list = part("memory");
  list.replaceChildren();
  part("memory-heading").textContent = heading;
  for (const fact of facts) list.append(make("li", "", fact));
  for (const call of calls) {
    const item = make("li", "");
    item.append(make("b", "", new Date(call.at).toLocaleString([], { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" })));
    item.append(make("span", "", ` ${[...new Set(call.about)].join(" · ")}`));
    list.append(item);
  }
  part("memory-empty").hidden = facts.length + calls.length > 0;
}

// One call, from the click to what is remembered of it.
class Call {
  constructor() {
    // Now: fields that are disabled later are in no form.
    this.wish = guestPass === null ? new URLSearchParams(new FormData(part("who"))) : new URLSearchParams({ pass: guestPass });
    this.following = new AbortController();
    this.answers = []; // how long each took, in seconds
    this.frames = this.agentAt = this.spokeAt = 0; // of 20 ms
    this.ended = false;
  }

  async place() {
    show("calling", "Opening the microphone…");
    this.sound = await Sound.open({
      frame: (data) => this.frame(data),
      reached: (name) => this.line?.send("mark", { name }),
      gone: () => this.hangUp("The microphone is gone. Plug it in, or allow it for this page, and call again.", true),
    });
    if (this.ended) return this.sound.close(); // hung up while the browser asked for the microphone
    show("calling", "Calling…");
    this.placed = await this.ring();
    if (this.ended) return;
    talk.list.replaceChildren();
    await this.followed();
    if (this.ended) return;
    this.line = new Line(this.placed, {
      media: (sound) => this.sound.tell({ sound }),
      mark: (mark) => this.sound.tell({ mark }),
      clear: () => this.sound.tell({ clear: true }),
      // A gateway that hangs up says so beside the line as well; one that is lost says nothing.
      closed: () => setTimeout(() => this.over("The connection to the gateway was lost.", true), 1000),
    });
  }

  async ring() {
    const answer = await fetch(guestPass === null ? "/phone/call" : "/phone/guest/call", { method: "POST", body: this.wish });
    if (!answer.ok) throw new Trouble(await answer.text());
    return answer.json();
  }

  // Resolves when nothing can be missed any more, or after a second: the call is worth more than its picture.
  followed() {
    return new Promise((ready) => {
      setTimeout(ready, 1000);
      follow(this.placed.watch, (event) => (event.event === "following" ? ready() : this.react(event)), this.following.signal).then(ready);
    });
  }

  frame({ frame, you, agent }) {
    this.line?.send("media", { payload: textOf(frame) });
    part("you").value = you;
    part("agent").value = agent;
    this.frames += 1;
    if (you > SPEAKS) this.spokeAt = this.frames;
    if (agent > SPEAKS) {
      if (this.spokeAt && this.frames - this.agentAt > 15) this.heardAfter((this.frames - this.spokeAt) * 0.02);
      this.agentAt = this.frames;
      this.spokeAt = 0;
    }
  }

  // As the caller experiences it: from their last sound to the agent's first, the engine's patience included.
  heardAfter(seconds) {
    this.wait = seconds + (this.sound.context.outputLatency || 0);
    this.measured();
  }

  turn(event) {
    if (event.speaker === "caller") this.wait = undefined;
    talk.turn({ ...event, latency: undefined });
    if (typeof event.latency === "number") this.answer = talk.list.lastElementChild;
    this.measured();
  }

  react(event) {
    switch (event.event) {
      case "answered":
        this.since ??= Date.now();
        this.clock ??= setInterval(() => this.tick(), 500);
        this.tick();
        break;
      case "memory":
        talk.memory(event);
        showMemory(this.placed.watch, `What ${clean(event.agent)} remembers`);
        break;
      case "turn": this.turn(event); break;
      case "interruption": talk.interrupted(event); break;
      case "function_called": talk.functionCalled(event); break;
      case "function_finished": talk.functionFinished(event); break;
      case "engine_lost": talk.note("The voice engine is lost; trying again"); break;
      case "error": talk.note(`${event.what}: ${event.reason}`); break;
      case "hangup":
        this.over("");
        if (call === this && !part("status").classList.contains("bad")) part("status").textContent = `The call is over: ${clean(event.reason)}.`;
        break;
      case "finished":
        showMemory(this.placed.watch, "What is remembered now");
        talk.note("Archived, summarised and remembered. Call again.");
        this.following.abort();
        break;
      default:
    }
  }

  // Text and sound of an answer come in any order.
  measured() {
    if (!this.answer || this.wait === undefined) return;
    const seconds = this.wait;
    this.answer.querySelector(".by").append(make("span", seconds >= 2 ? "chip slow" : "chip", `heard after ${took(seconds)}`));
    this.answer = this.wait = undefined;
    this.answers.push(seconds);
    const middle = [...this.answers].sort((one, other) => one - other)[Math.floor((this.answers.length - 1) / 2)];
    part("latency").textContent = `From your last sound to the agent's first: ${took(middle)} for half of ${many(this.answers.length, "answer")}`;
  }

  tick() {
    const seconds = Math.floor((Date.now() - this.since) / 1000);
    show("talking", `On the line, ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`);
  }

  mute(muted) { this.sound?.tell({ muted }); }

  press(key) {
    this.sound?.tone(KEYS[key]);
    this.line?.send("dtmf", { track: "inbound_track", digit: key });
  }

  hangUp(words = "You hung up.", bad = false) {
    if (this.line) this.line.hangUp();
    this.over(words, bad);
  }

  over(words, bad = false) {
    if (this.ended) return;
    this.ended = true;
    clearInterval(this.clock);
    this.sound?.close();
    if (this.line) this.line.socket.close();
    else this.following.abort();
    for (const name of ["you", "agent"]) part(name).value = 0;
    part("mute").setAttribute("aria-pressed", "false");
    show(guestPass === null || !this.line ? "idle" : "spent", words, bad);
  }
}

let call = null;

function show(state, words, bad = false) {
  panel.dataset.state = state;
  part("status").textContent = words;
  part("status").classList.toggle("bad", bad);
  part("call").hidden = state === "calling" || state === "talking" || state === "spent";
  part("hang-up").hidden = !(state === "calling" || state === "talking");
  part("mute").disabled = state !== "talking";
  for (const key of panel.querySelectorAll("[data-key]")) key.disabled = state !== "talking";
  for (const field of panel.querySelectorAll("[data-part='who'] input, [data-part='who'] select")) field.disabled = state === "calling" || state === "talking";
}

async function begin(event) {
  event?.preventDefault();
  if (call && !call.ended) return;
  call?.following.abort(); // one of which nothing is kept is never told to be finished
  const mine = (call = new Call());
  try {
    await mine.place();
  } catch (error) {
    mine.over(error instanceof Trouble ? error.message : "The gateway does not answer. Is it running?", true);
  }
}

part("who")?.addEventListener("submit", begin);
if (!part("who")) part("call").addEventListener("click", begin);
part("hang-up").addEventListener("click", () => call?.hangUp());
part("mute").addEventListener("click", (event) => {
  const muted = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", String(muted));
  call?.mute(muted);
});
for (const key of panel.querySelectorAll("[data-key]")) key.addEventListener("click", () => call?.press(key.dataset.key));
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (!typing && panel.dataset.state === "talking" && KEYS[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) call.press(event.key);
});
addEventListener("pagehide", () => { if (call && !call.ended) call.hangUp(); });

part("link")?.addEventListener("click", async () => {
  const answer = await fetch("/phone/link", { method: "POST", body: new URLSearchParams(new FormData(part("who"))) });
  const text = await answer.text();
  const field = part("link-address");
  part("link-shown").hidden = !answer.ok;
  if (!answer.ok) return show("idle", text, true);
  field.value = text;
  field.select();
});
if (guestPass === "") show("spent", "This page was opened without its link. Open the link again, or ask for one.", true);
else show("idle", "");
