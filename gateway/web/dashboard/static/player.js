// Connects the recording with the timeline and the transcript: a moving cursor, and a click plays from there.
"use strict";
const audio = document.getElementById("recording");
const timeline = document.querySelector(".timeline-card");
const play = timeline.querySelector(".play");
const turns = [...document.querySelectorAll(".turn[data-at]")];
const cursors = timeline.querySelectorAll(".cursor");
const [left, right] = [64, 992];
document.body.classList.add("has-recording");

// Until it is loaded, which is an entry in the audit log, the browser's player would show a length of 0:00.
audio.hidden = true;
play.hidden = false;

function showPlayer() {
  if (play.hidden) return;
  audio.hidden = false;
  if (document.activeElement === play) audio.focus();
  play.hidden = true;
}

function moveCursor() {
  const share = audio.currentTime / Number(timeline.dataset.seconds);
  for (const cursor of cursors) cursor.setAttribute("transform", `translate(${share * (right - left)} 0)`);
  const now = turns.filter((turn) => Number(turn.dataset.at) <= audio.currentTime + 0.3).pop();
  for (const turn of turns) turn.classList.toggle("playing", turn === now && !audio.paused);
}

function playFrom(seconds) {
  audio.currentTime = Math.max(seconds - 0.2, 0);
  audio.play().catch(() => {});
}

play.addEventListener("click", () => audio.play().catch(() => {}));
audio.addEventListener("timeupdate", moveCursor);
audio.addEventListener("play", () => { showPlayer(); timeline.classList.add("playing"); moveCursor(); });
audio.addEventListener("pause", moveCursor);
timeline.addEventListener("click", (event) => {
  const span = event.target.closest(".span");
  if (span) playFrom(Number(span.dataset.at));
  else if (event.target.closest(".spans")) playFrom(timeAt(event));
});

function timeAt(event) {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(event.target.getScreenCTM().inverse());
  return ((point.x - left) / (right - left)) * Number(timeline.dataset.seconds);
}

for (const turn of turns) {
  turn.tabIndex = 0;
  turn.addEventListener("click", () => { if (!String(getSelection())) playFrom(Number(turn.dataset.at)); });
  turn.addEventListener("keydown", (event) => { if (event.key === "Enter") playFrom(Number(turn.dataset.at)); });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== " " || event.target.closest("input, textarea, select, button, summary, a, audio, dialog")) return;
  event.preventDefault();
  if (audio.paused) audio.play().catch(() => {}); else audio.pause();
});
