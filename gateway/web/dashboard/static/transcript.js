// A live transcript. Callers' words become text, never markup.
"use strict";
const MOST_TURNS = 200;
const controls = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]/g;

const clean = (text) => String(text ?? "").replace(controls, "\ufffd");
const milliseconds = (seconds) => (seconds < 0.9995 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`);
const clock = (seconds) => `${Math.floor(Math.round(seconds) / 60)}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;
const many = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function make(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  if (text !== undefined) element.textContent = clean(text);
  return element;
}

class Transcript {
  constructor(list, { caller = "Caller", agent = "Agent" } = {}) {
    this.list = list;
    this.names = { caller, agent };
  }

  append(item) {
    const list = this.list;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    list.append(item);
    while (list.children.length > MOST_TURNS) list.firstElementChild.remove();
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  note(text) { this.append(make("li", "event", text)); }

  turn(event) {
    const last = this.list.lastElementChild;
    if (event.speaker === "agent" && last && last.dataset.answer === String(event.answer)) {
      last.querySelector(".said").append(` ${clean(event.text)}`);
      this.append(last);
      return;
    }
    const speaker = event.speaker === "caller" ? "caller" : "agent";
    const item = make("li", `turn ${speaker}`);
    if (event.answer !== undefined) item.dataset.answer = event.answer;
    const by = make("p", "by");
    by.append(make("b", "", this.names[speaker]));
    if (typeof event.latency === "number") by.append(make("span", event.latency >= 2 ? "chip slow" : "chip", milliseconds(event.latency)));
    const said = make("p", "said", event.text);
    said.dir = "auto";
    item.append(by, said);
    this.append(item);
  }

  interrupted(event) {
    const items = [...this.list.querySelectorAll(".turn.agent")];
    const item = items.reverse().find((one) => one.dataset.answer === String(event.answer)) || items[0];
    if (!item) return;
    const said = item.querySelector(".said");
    said.textContent = `${clean(event.heard)} `;
    said.append(make("s", "", event.unheard));
  }

  memory(event) {
    if (event.facts || event.calls) this.note(`Memory loaded: ${many(event.facts, "fact")}, ${many(event.calls, "earlier call")}`);
    else this.note("No earlier calls found");
  }

  functionCalled(event) { if (event.function !== "end_call") this.note(`Calling ${event.function}`); }

  functionFinished(event) {
    if (event.function === "end_call" && event.ok) return this.note("Agent ended the call");
    this.note(`${event.function} ${event.ok ? "returned" : "failed"} after ${milliseconds(event.seconds || 0)}`);
  }
}
