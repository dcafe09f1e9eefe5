// Keyboard shortcuts of every page. "?" lists them; the links of the navigation say which letter follows "g".
"use strict";
const keys = document.getElementById("keys");
const opener = document.querySelector("[data-open='keys']");
let leader = 0;
document.querySelector(".tab[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" }); // on a phone the navigation scrolls
if (opener) {
  opener.hidden = false;
  opener.addEventListener("click", () => keys.showModal());
  keys.addEventListener("click", (event) => { if (event.target === keys) keys.close(); }); // outside of its content
}
// An address may name a turn that is on another page of the transcript.
function findTurn() {
  const number = /^#turn-(\d+)$/.exec(location.hash)?.[1];
  if (!number || !document.querySelector(".turns[data-paged]") || document.getElementById(`turn-${number}`)) return;
  const address = `?turn=${number}${location.hash}`;
  if (location.search + location.hash !== address) location.replace(address);
}
findTurn();
addEventListener("hashchange", findTurn);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !keys) return;
  if (event.key === "?") {
    if (!keys.open) keys.showModal();
  } else if (event.key === "/") {
    const field = document.querySelector("[data-hotkey='/']");
    if (field) { event.preventDefault(); keys.close(); field.focus(); field.select(); }
  } else if (event.key === "g") {
    leader = Date.now();
  } else if (Date.now() - leader < 1500) {
    const link = document.querySelector(`.tab[data-key="${CSS.escape(event.key)}"]`);
    if (link) location.assign(link.href);
  }
});
