// Audio of the browser phone, on the browser's audio thread, so that the page can't make it stutter. The microphone
// becomes 20 ms frames of 8 kHz mu-law; audio from the gateway is played in order.
"use strict";
const RATE = 8000;
const FRAME = 160;
const PREBUFFER = 480; // 60 ms, so that one late packet is not audible
const MAX_QUEUED = RATE * 300; // five minutes of unplayed audio; more is dropped
const SILENCE = 0xff;

function encode(sample) {
  const clipped = Math.max(-32635, Math.min(32635, Math.round(sample * 32767)));
  const magnitude = Math.abs(clipped) + 132;
  const exponent = 31 - Math.clz32(magnitude) - 7;
  return ~((clipped < 0 ? 0x80 : 0) | (exponent << 4) | ((magnitude >> (exponent + 3)) & 0x0f)) & 0xff;
}

const decoded = Float32Array.from({ length: 256 }, (_, byte) => {
  const code = ~byte & 0xff;
  const magnitude = (((code & 0x0f) << 3) + 132) * 2 ** ((code >> 4) & 7) - 132;
  return (code & 0x80 ? -magnitude : magnitude) / 32768;
});

// Converts sample rates with a windowed-sinc low-pass filter (Hann window), interpolated between 128 phases.
class Resampler {
  constructor(from, to) {
    this.step = from / to;
    const cutoff = 0.92 * Math.min(1, to / from);
    this.reach = Math.ceil(12 / cutoff);
    this.phases = Array.from({ length: 129 }, (_, phase) => this.kernel(cutoff, phase / 128));
    this.samples = new Float32Array(this.reach * 2 - 1);
    this.at = this.reach - 1; // position of the next output sample, in input samples
  }

  kernel(cutoff, shift) {
    return Float32Array.from({ length: this.reach * 2 }, (_, tap) => {
      const x = tap - this.reach + 1 - shift;
      const sinc = x === 0 ? 1 : Math.sin(Math.PI * cutoff * x) / (Math.PI * cutoff * x);
      return cutoff * sinc * 0.5 * (1 + Math.cos((Math.PI * x) / (this.reach + 1)));
    });
  }

  push(input) {
    const all = new Float32Array(this.samples.length + input.length);
    all.set(this.samples);
    all.set(input, this.samples.length);
    const output = [];
    for (; Math.floor(this.at) + this.reach < all.length; this.at += this.step) {
      const whole = Math.floor(this.at);
      const taps = this.phases[Math.round((this.at - whole) * 128)];
      let sum = 0;
      for (let tap = 0, from = whole - this.reach + 1; tap < taps.length; tap += 1) sum += taps[tap] * all[from + tap];
      output.push(sum);
    }
    const done = Math.floor(this.at) - this.reach + 1;
    this.samples = all.slice(done);
    this.at -= done;
    return output;
  }
}

const loudness = (samples) => {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  const decibels = 10 * Math.log10(sum / Math.max(1, samples.length) + 1e-9);
  return Math.max(0, Math.min(1, (decibels + 60) / 50));
};

// The queue of audio and marks to be played, in order.
class PlayoutQueue {
  constructor(onMark) {
    this.onMark = onMark;
    this.queue = [];
    this.length = 0;
    this.buffering = true;
  }

  audio(bytes) {
    if (this.length + bytes.length > MAX_QUEUED) return;
    this.queue.push(bytes);
    this.length += bytes.length;
  }

  mark(name) { this.queue.push(name); }

  clear() {
    const marks = this.queue.filter((item) => typeof item === "string");
    this.queue = [];
    this.length = 0;
    this.buffering = true;
    marks.forEach(this.onMark);
  }

  // Returns `count` samples; silence if the queue is empty or still buffering.
  take(count) {
    const taken = new Float32Array(count);
    if (this.buffering && this.length < PREBUFFER && typeof this.queue.at(-1) !== "string") return taken;
    this.buffering = false;
    let at = 0;
    while (this.queue.length && (at < count || typeof this.queue[0] === "string")) {
      const first = this.queue.shift();
      if (typeof first === "string") { this.onMark(first); continue; }
      const part = first.subarray(0, count - at);
      part.forEach((byte) => { taken[at++] = decoded[byte]; });
      if (part.length < first.length) this.queue.unshift(first.subarray(part.length));
      this.length -= part.length;
    }
    if (at < count) this.buffering = true;
    return taken;
  }
}

class Phone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.down = new Resampler(sampleRate, RATE);
    this.up = new Resampler(RATE, sampleRate);
    this.spoken = [];
    this.heard = [];
    this.played = [];
    this.muted = false;
    this.ended = false;
    this.playout = new PlayoutQueue((name) => this.port.postMessage({ mark: name }));
    this.port.onmessage = ({ data }) => {
      if (data.audio) this.playout.audio(data.audio);
      if (data.mark) this.playout.mark(data.mark);
      if (data.clear) this.playout.clear();
      if ("muted" in data) this.muted = data.muted;
      if (data.ended) this.ended = true;
    };
  }

  process([microphone], [speaker]) {
    const size = speaker[0].length;
    this.speak(microphone[0] || new Float32Array(size));
    while (this.heard.length < size) {
      const samples = this.playout.take(FRAME / 4);
      this.played.push(...samples);
      this.heard.push(...this.up.push(samples));
    }
    const out = this.heard.splice(0, size);
    for (const channel of speaker) channel.set(out);
    return !this.ended;
  }

  speak(samples) {
    this.spoken.push(...this.down.push(samples));
    while (this.spoken.length >= FRAME) {
      const frame = this.spoken.splice(0, FRAME);
      const audio = this.muted ? new Uint8Array(FRAME).fill(SILENCE) : Uint8Array.from(frame, encode);
      this.port.postMessage({ frame: audio, you: this.muted ? 0 : loudness(frame), agent: loudness(this.played.splice(0)) });
    }
  }
}

registerProcessor("phone", Phone);
