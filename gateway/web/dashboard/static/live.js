// The page of live calls.
"use strict";
const cards = document.getElementById("lives");
const fullCards = Number(cards.dataset.fullCards);
const connection = document.getElementById("link");
const shownAt = Date.parse(cards.dataset.now);
const atStart = new Set([...cards.children].map((card) => card.dataset.session));
const REMOVE_AFTER = 30000;
const RETRY_AFTER = 2000;
const players = new WeakMap();
let unseen = Number(cards.dataset.unseen);
const uuid = (session) => String(session).replace("voice-session:", "");
const readable = (number) => clean(number).replace(/^\+1(\d{3})(\d{3})(\d{4})$/, "+1 $1-$2-$3");
const cardOf = (session) => cards.querySelector(`[data-session="${CSS.escape(uuid(session))}"]`);

function recount() {
  const count = cards.querySelectorAll("article:not(.over)").length;
  document.getElementById("count").textContent = many(count + unseen, "live call");
  document.getElementById("quiet").hidden = cards.children.length > 0;
  const more = document.getElementById("more");
  more.hidden = !unseen;
  more.textContent = `${many(unseen, "more call")}. Each appears here with its next event.`;
}

// Events have the number only. A call that rings is not known by name yet.
async function showName(card, number) {
  const response = await fetch(`/live/${card.dataset.session}/name`).catch(() => null);
  const name = response?.ok ? clean(await response.text()) : "";
  if (!name) return;
  card.querySelector(".caller-name").textContent = name;
  card.querySelector(".caller-number").hidden = false;
  card.querySelector(".caller-number .number").textContent = readable(number);
  card.setAttribute("aria-label", `Call from ${name}`);
}

function openCard(event) {
  const known = cardOf(event.session);
  if (known) return known;
  if (!["ringing", "answered"].includes(event.event) && unseen) unseen -= 1;
  const isFull = cards.querySelectorAll("article:not(.compact, .over)").length < fullCards;
  const card = document.getElementById(isFull ? "card" : "row").content.cloneNode(true).querySelector("article");
  const id = uuid(event.session);
  card.dataset.session = id;
  card.setAttribute("aria-label", `Call from ${readable(event.caller) || "a withheld number"}`);
  card.querySelector(".caller-name").textContent = readable(event.caller) || "Number withheld";
  card.querySelector(".agent-name").textContent = clean(event.agent);
  card.querySelector(".since").append(timeElement(event.at, "clock"));
  if (isFull) fillCard(card, id, event);
  else card.querySelector("h2 a").href = `/?call=${id}`;
  cards.insertBefore(card, isFull ? cards.firstChild : cards.querySelector(".compact"));
  if (event.caller && !["ringing", "dialling", "answered"].includes(event.event)) showName(card, event.caller);
  recount();
  return card;
}

function fillCard(card, id, event) {
  card.querySelector(".carrier").textContent = clean(event.carrier);
  for (const form of card.querySelectorAll("form")) form.action = form.getAttribute("action").replace("//", `/${id}/`);
  card.querySelector(".known a").href = `/live/${id}/caller`;
  card.querySelector(".known").hidden = !event.caller;
  const listenButton = card.querySelector(".listen");
  if (listenButton) listenButton.dataset.audio = `/live/${id}/listen.wav`;
}

function answered(event) {
  const card = openCard(event);
  setState(card, "live");
  if (event.caller && card.querySelector(".caller-number").hidden) showName(card, event.caller);
}

// The page was made with the text of an answer; its response time came later.
function timed(event) {
  const card = cardOf(event.session);
  if (card) transcript(card).timed(event);
}

// A row shows the last thing only.
const transcript = (card) => new Transcript(card.querySelector(".turns"), card.classList.contains("compact") ? { most: 1 } : {});

function setState(card, label, bad) {
  const badge = card.querySelector(".state");
  badge.textContent = label;
  badge.className = `badge state ${bad ? "bad" : "live"}`;
}

function closeCard(card, event) {
  card.classList.add("over");
  setState(card, clean(event.reason) || "ended", false);
  for (const field of card.querySelectorAll(".controls button, .controls input")) field.disabled = true;
  const listenButton = card.querySelector(".listen");
  if (listenButton) stopListening(listenButton);
  for (const link of card.querySelectorAll(".known")) link.hidden = true;
  for (const meter of card.querySelectorAll("meter")) meter.value = 0;
  transcript(card).note(`Call ended after ${clock(event.seconds || 0)}`);
  setTimeout(() => { card.remove(); recount(); }, REMOVE_AFTER);
  recount();
}

// The page's clock may differ from the server's.
const ahead = Date.now() - shownAt;
function tick() {
  for (const card of cards.querySelectorAll("article:not(.over)")) {
    const since = card.querySelector(".since time")?.dateTime;
    if (since) card.querySelector(".elapsed").textContent = ` · ${clock(Math.max(Date.now() - ahead - Date.parse(since), 0) / 1000)}`;
  }
}
tick();
setInterval(tick, 1000);

const handlers = {
  dialling: (event) => setState(openCard(event), "dialling"),
  unanswered: (event) => { const card = cardOf(event.session); if (card) closeCard(card, event); },
  ringing: (event) => setState(openCard(event), "ringing"),
  answered,
  memory: (event) => transcript(openCard(event)).memory(event),
  turn: (event) => transcript(openCard(event)).turn(event),
  answer_started: (event) => transcript(openCard(event)).timed(event),
  interruption: (event) => transcript(openCard(event)).interrupted(event),
  function_called: (event) => transcript(openCard(event)).functionCalled(event),
  function_finished: (event) => transcript(openCard(event)).functionFinished(event),
  engine_lost: (event) => {
    const card = openCard(event);
    setState(card, "voice engine lost", true);
    transcript(card).note(`Voice engine lost: ${event.engine}`);
  },
  engine_back: (event) => {
    const card = openCard(event);
    setState(card, "live");
    transcript(card).note(`${event.engine} connected`);
  },
  media_lost: (event) => setState(openCard(event), "media stream lost", true),
  voicemail: (event) => transcript(openCard(event)).note(`Voicemail ${event.state}`),
  error: (event) => transcript(openCard(event)).problem(event),
  hangup: (event) => {
    const card = cardOf(event.session);
    if (card) closeCard(card, event);
    else if (unseen) { unseen -= 1; recount(); }
  },
  summary: (event) => { const card = cardOf(event.session); if (card) transcript(card).link("Summary saved: open the call", `/calls/${card.dataset.session}`); },
};

const source = new EventSource(`/live/events?levels=1&since=${encodeURIComponent(cards.dataset.cursor)}`);
source.addEventListener("open", () => { connection.textContent = ""; });
source.addEventListener("error", () => {
  connection.textContent = "· connection lost, reconnecting";
  if (source.readyState === EventSource.CLOSED) setTimeout(reconnect, RETRY_AFTER);
});

// EventSource reconnects by itself, but not after an HTTP error, such as a proxy's, or when the login has expired.
async function reconnect() {
  const response = await fetch("/health").catch(() => null);
  if (response?.ok) location.reload();
  else setTimeout(reconnect, RETRY_AFTER);
}

for (const [name, handle] of Object.entries(handlers)) {
  source.addEventListener(name, (message) => {
    if (!message.data) return;
    const event = JSON.parse(message.data);
    if (!atStart.has(uuid(event.session)) || Date.parse(event.at) > shownAt) handle(event);
    else if (name === "turn" || name === "answer_started") timed(event);
  });
}
source.addEventListener("levels", (message) => {
  for (const level of JSON.parse(message.data).levels) {
    const card = cardOf(level.session);
    if (!card || card.classList.contains("compact")) continue;
    card.querySelector("meter.caller").value = level.caller;
    card.querySelector("meter.agent").value = level.agent;
  }
});

async function send(form) {
  const response = await fetch(form.action, { method: "POST", body: new URLSearchParams([...new FormData(form), ["quietly", "1"]]) });
  if (!response.ok) transcript(form.closest("article")).note(await response.text());
  return response.ok;
}

function listen(button) {
  const audio = new Audio(button.dataset.audio);
  players.set(button, audio);
  button.setAttribute("aria-pressed", "true");
  button.textContent = "Listening";
  audio.addEventListener("ended", () => stopListening(button));
  audio.play().catch(() => {
    if (players.get(button) === audio) { stopListening(button); transcript(button.closest("article")).note("Listen-in is not available for this call."); }
  });
}

function stopListening(button) {
  const audio = players.get(button);
  players.delete(button);
  button.setAttribute("aria-pressed", "false");
  button.textContent = "Listen in";
  if (!audio) return;
  audio.pause();
  audio.removeAttribute("src"); // otherwise the browser keeps downloading
  audio.load();
}

cards.addEventListener("click", (event) => {
  const button = event.target.closest(".listen");
  if (button) (players.has(button) ? stopListening : listen)(button);
});

cards.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  if (button.dataset.confirm && !button.dataset.label) {
    button.dataset.label = button.textContent;
    button.textContent = button.dataset.confirm;
    setTimeout(() => { button.textContent = button.dataset.label || button.textContent; delete button.dataset.label; }, 4000);
    return;
  }
  if (await send(form)) form.reset();
});
for (const list of cards.querySelectorAll(".turns")) list.scrollTop = list.scrollHeight;
