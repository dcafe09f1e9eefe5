// Ties the recording to the timeline and the transcript: a cursor that moves, and places to jump to.
"use strict";
const sound = document.getElementById("sound");
const story = document.querySelector(".story");
const turns = [...document.querySelectorAll(".turn[data-at]")];
const cursors = story.querySelectorAll(".cursor");
const [left, right] = [64, 992];
document.body.classList.add("has-sound");

function place() {
  const share = sound.duration ? sound.currentTime / sound.duration : 0;
  for (const cursor of cursors) cursor.setAttribute("transform", `translate(${share * (right - left)} 0)`);
  const now = turns.filter((turn) => Number(turn.dataset.at) <= sound.currentTime + 0.3).pop();
  for (const turn of turns) turn.classList.toggle("playing", turn === now && !sound.paused);
}

function playFrom(seconds) {
  sound.currentTime = Math.max(seconds - 0.2, 0);
  sound.play().catch(() => {});
}

sound.addEventListener("timeupdate", place);
sound.addEventListener("play", () => { story.classList.add("playing"); place(); });
sound.addEventListener("pause", place);
story.addEventListener("click", (event) => {
  const span = event.target.closest(".span");
  if (span) playFrom(Number(span.dataset.at));
});
for (const turn of turns) {
  turn.tabIndex = 0;
  turn.addEventListener("click", () => { if (!String(getSelection())) playFrom(Number(turn.dataset.at)); });
  turn.addEventListener("keydown", (event) => { if (event.key === "Enter") playFrom(Number(turn.dataset.at)); });
}
