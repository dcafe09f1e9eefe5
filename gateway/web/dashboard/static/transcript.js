// A live transcript. Callers' words become text, never markup.
"use strict";
const MOST_TURNS = 200;
const controls = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]/g;

const clean = (text) => String(text ?? "").replace(controls, "\ufffd");
const milliseconds = (seconds) => (seconds < 0.9995 ? `${Math.round(seconds * 1000)} ms` : `${(Math.round(seconds * 100) / 100).toFixed(2)} s`);
const clock = (seconds) => `${Math.floor(Math.round(seconds) / 60)}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;
const many = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function make(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  if (text !== undefined) element.textContent = clean(text);
  return element;
}

// The words of call_notes.py: for problems, for codes of voice engines, for an agent without memory. The widget has none of these.
const eventWords = () => JSON.parse(document.querySelector("[data-event-words]").dataset.eventWords);
function problemText({ what, reason }) {
  if (what === "call failed") return "The call failed. See the log for details.";
  const { codes, problems } = eventWords();
  const isCode = /^[A-Za-z0-9]+([_.][A-Za-z0-9]+)+$/.test(reason);
  const words = codes[reason] || (isCode ? reason.replace(/[_.]/g, " ").toLowerCase() : reason);
  return [problems[what] || what, words].filter(Boolean).join(": ");
}

// The gateway's figure for one answer: from the caller's last voiced frame, or from elsewhere if none was found.
const NOTES = { voice: "", engine: " from the engine's end of turn", transcript: " from the transcript" };
function responseTime({ latency, counted_from: countedFrom = "engine" }) {
  const chip = make("span", latency >= 2 ? "chip slow" : "chip", milliseconds(latency) + NOTES[countedFrom]);
  chip.title = "Response time";
  return chip;
}

class Transcript {
  constructor(list, { caller = "Caller", most = MOST_TURNS } = {}) {
    this.list = list;
    this.most = most;
    this.names = { caller, agent: "Agent", operator: "Operator" };
  }

  append(item) {
    const list = this.list;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    list.append(item);
    while (list.children.length > this.most) list.firstElementChild.remove();
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  note(text) { this.append(make("li", "event", text)); }

  link(text, address) {
    const item = make("li", "event", "");
    const link = make("a", "", text);
    link.href = address;
    item.append(link);
    this.append(item);
  }

  problem(event) { this.note(problemText(event)); }

  turn(event) {
    const last = this.list.lastElementChild;
    if (event.speaker === "agent" && last && last.dataset.answer === String(event.answer)) {
      last.querySelector(".said").append(` ${clean(event.text)}`);
      this.timed(event);
      this.append(last);
      return;
    }
    const speaker = event.speaker === "caller" ? "caller" : event.by_operator ? "operator" : "agent";
    const item = make("li", `turn ${speaker}`);
    if (event.answer !== undefined) item.dataset.answer = event.answer;
    const by = make("p", "by");
    by.append(make("b", "", this.names[speaker]));
    const said = make("p", "said", event.text);
    said.dir = "auto";
    item.append(by, said);
    this.append(item);
    this.timed(event);
  }

  // The response time of an answer, with its text or after it.
  timed(event) {
    if (typeof event.latency !== "number" || event.by_operator) return;
    this.list.querySelector(`[data-answer="${event.answer}"] .by:not(:has(.chip))`)?.append(responseTime(event));
  }

  interrupted(event) {
    const items = [...this.list.querySelectorAll(".turn.agent, .turn.operator")];
    const item = items.reverse().find((one) => one.dataset.answer === String(event.answer)) || items[0];
    if (!item) return;
    const said = item.querySelector(".said");
    said.textContent = `${clean(event.heard)} `;
    said.append(make("s", "", event.unheard));
  }

  memory(event) {
    if (event.facts || event.calls) this.note(`Memory loaded: ${many(event.facts, "fact")}, ${many(event.calls, "earlier call")}`);
    else if (event.tier === "none") this.note("No access to memory");
    else this.note(eventWords().no_memory[event.outcome] || "No earlier calls found");
  }

  functionCalled(event) { if (event.function !== "end_call") this.note(`Calling ${event.function}`); }

  functionFinished(event) {
    if (event.function === "end_call" && event.ok) return this.note("Agent ended the call");
    this.note(`${event.function} ${event.ok ? "returned" : "failed"} after ${milliseconds(event.seconds || 0)}`);
  }
}
