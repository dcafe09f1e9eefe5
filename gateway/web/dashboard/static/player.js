// Connects the recording with the timeline and the transcript: a moving cursor, and a click plays from there.
"use strict";
const audio = document.getElementById("recording");
const timeline = document.querySelector(".timeline-card");
const turns = [...document.querySelectorAll(".turn[data-at]")];
const cursors = timeline.querySelectorAll(".cursor");
const [left, right] = [64, 992];
document.body.classList.add("has-recording");

function moveCursor() {
  const share = audio.duration ? audio.currentTime / audio.duration : 0;
  for (const cursor of cursors) cursor.setAttribute("transform", `translate(${share * (right - left)} 0)`);
  const now = turns.filter((turn) => Number(turn.dataset.at) <= audio.currentTime + 0.3).pop();
  for (const turn of turns) turn.classList.toggle("playing", turn === now && !audio.paused);
}

function playFrom(seconds) {
  audio.currentTime = Math.max(seconds - 0.2, 0);
  audio.play().catch(() => {});
}

audio.addEventListener("timeupdate", moveCursor);
audio.addEventListener("play", () => { timeline.classList.add("playing"); moveCursor(); });
audio.addEventListener("pause", moveCursor);
timeline.addEventListener("click", (event) => {
  const span = event.target.closest(".span");
  if (span) playFrom(Number(span.dataset.at));
});
for (const turn of turns) {
  turn.tabIndex = 0;
  turn.addEventListener("click", () => { if (!String(getSelection())) playFrom(Number(turn.dataset.at)); });
  turn.addEventListener("keydown", (event) => { if (event.key === "Enter") playFrom(Number(turn.dataset.at)); });
}
