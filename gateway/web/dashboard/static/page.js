// Keyboard shortcuts of every page: "/" focuses the search field, "g" and a letter opens a page.
"use strict";
const pages = { l: "/", c: "/calls", p: "/callers", t: "/phone", h: "/vitals", a: "/audit", k: "/tokens" };
let leader = 0;
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-hotkey='/']");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  } else if (event.key === "g") {
    leader = Date.now();
  } else if (Date.now() - leader < 1500 && pages[event.key]) {
    location.assign(pages[event.key]);
  }
});
