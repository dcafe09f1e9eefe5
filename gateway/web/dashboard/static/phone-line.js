// A call from a browser: microphone, speaker and media socket, in the protocol of Twilio Media Streams.
"use strict";
const MICROPHONE_ERRORS = {
  NotAllowedError: "Microphone access was denied. Allow it for this page (icon beside the address), then call again.",
  NotFoundError: "No microphone found. Connect one or select one in the system settings, then call again.",
  NotReadableError: "Another program is using the microphone. Close it, then call again.",
  OverconstrainedError: "This microphone is not supported. Select another one, then call again.",
  SecurityError: "The browser's settings block the microphone for this page.",
};

class CallError extends Error {
  constructor(message, reason = "") {
    super(message);
    this.reason = reason;
  }
}

function bytesOf(text) { return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)); }
function textOf(bytes) { return btoa(String.fromCharCode(...bytes)); }

function withTimeout(promise, message) {
  return Promise.race([promise, new Promise((_, fail) => setTimeout(() => fail(new CallError(message)), 5000))]);
}

async function microphone() {
  if (!navigator.mediaDevices) throw new CallError("Browsers allow the microphone only over https or on http://localhost. Open the page at such an address.", "InsecurePage");
  try {
    const constraints = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    return await navigator.mediaDevices.getUserMedia({ audio: constraints });
  } catch (error) {
    throw new CallError(MICROPHONE_ERRORS[error.name] || `The microphone failed: ${error.name}.`, error.name);
  }
}

// Microphone and speaker. `script` is the address of phone-audio.js. `frame` is called 50 times a second, `reached` with
// each mark that was played, `gone` when the microphone is disconnected.
class AudioDevice {
  static async open(script, { frame, reached, gone }) {
    const stream = await microphone();
    const device = new AudioDevice();
    device.stream = stream;
    for (const track of stream.getTracks()) track.onended = gone;
    try {
      device.context = new AudioContext({ latencyHint: "interactive" });
      await withTimeout(device.context.resume(), "No speaker found. Connect one, then call again.");
      await device.context.audioWorklet.addModule(script);
      device.node = new AudioWorkletNode(device.context, "phone", { numberOfInputs: 1, numberOfOutputs: 1, outputChannelCount: [1] });
      device.node.port.onmessage = ({ data }) => (data.mark ? reached(data.mark) : frame(data));
      device.context.createMediaStreamSource(stream).connect(device.node).connect(device.context.destination);
    } catch (error) {
      device.close();
      throw error instanceof CallError ? error : new CallError(`The browser can't play or record audio: ${error.message}`);
    }
    return device;
  }

  post(message) { this.node.port.postMessage(message); }

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
    if (this.node) this.post({ ended: true });
    if (this.context) this.context.close();
  }
}

// The media socket, in the protocol of Twilio Media Streams.
class MediaSocket {
  constructor(gateway, call, { media, mark, clear, closed }) {
    this.stream = `stream-${call.call_id}`;
    this.socket = new WebSocket(gateway.replace(/^http/, "ws") + call.media_path);
    this.socket.onopen = () => {
      this.send("start", {
        accountSid: call.account_id, callSid: call.call_id, streamSid: this.stream, tracks: ["inbound"],
        mediaFormat: { encoding: "audio/x-mulaw", sampleRate: 8000, channels: 1 }, customParameters: { token: call.token },
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

// Reads server-sent events. `request` asks for those after a position, with a token that EventSource would need in the
// address.
async function follow(request, handle, signal) {
  let since = "";
  for (;;) {
    try {
      const response = await request(since);
      if (!response.ok) return;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const fields = Object.fromEntries(block.split("\n").map((line) => [line.split(":")[0], line.slice(line.indexOf(":") + 1).trim()]));
          if (fields.id) since = fields.id;
          if (fields.data) handle(JSON.parse(fields.data));
          else if (fields.id) handle({ event: "following" });
        }
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}
