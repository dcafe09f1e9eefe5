// Calls as they happen.
"use strict";
const lives = document.getElementById("lives");
const blank = document.getElementById("card");
const link = document.getElementById("link");
const shownAt = Date.parse(lives.dataset.now);
const atStart = new Set([...lives.children].map((card) => card.dataset.session));
const GONE_AFTER = 30000;
const BACK_AFTER = 2000;
const ears = new WeakMap();
let unseen = Number(lives.dataset.unseen);
const uuid = (session) => String(session).replace("voice-session:", "");
const readable = (number) => clean(number).replace(/^\+1(\d{3})(\d{3})(\d{4})$/, "+1 $1-$2-$3");
const cardOf = (session) => lives.querySelector(`[data-session="${CSS.escape(uuid(session))}"]`);

function recount() {
  const count = lives.querySelectorAll("article:not(.over)").length;
  document.getElementById("count").textContent = many(count + unseen, "call");
  document.getElementById("quiet").hidden = lives.children.length > 0;
}

function open(event) {
  const known = cardOf(event.session);
  if (known) return known;
  if (!["ringing", "answered"].includes(event.event) && unseen) unseen -= 1;
  const card = blank.content.cloneNode(true).querySelector("article");
  const id = uuid(event.session);
  card.dataset.session = id;
  card.setAttribute("aria-label", `Call of ${readable(event.caller) || "a withheld number"}`);
  card.querySelector(".caller-name").textContent = readable(event.caller) || "Number withheld";
  card.querySelector(".agent-name").textContent = clean(event.agent);
  card.querySelector(".carrier").textContent = clean(event.carrier);
  const since = card.querySelector(".since");
  since.dateTime = event.at;
  since.textContent = new Date(event.at).toTimeString().slice(0, 5);
  for (const form of card.querySelectorAll("form")) form.action = form.getAttribute("action").replace("//", `/${id}/`);
  card.querySelector(".known a").href = `/live/${id}/caller`;
  card.querySelector(".known").hidden = !event.caller;
  const ear = card.querySelector(".listen");
  if (ear) ear.dataset.sound = `/live/${id}/listen.wav`;
  lives.prepend(card);
  recount();
  return card;
}

const talk = (card) => new Transcript(card.querySelector(".turns"));

function state(card, words, bad) {
  const badge = card.querySelector(".state");
  badge.textContent = words;
  badge.className = `badge state ${bad ? "bad" : "live"}`;
}

function over(card, event) {
  card.classList.add("over");
  state(card, clean(event.reason) || "over", false);
  for (const field of card.querySelectorAll(".operator button, .operator input")) field.disabled = true;
  const ear = card.querySelector(".listen");
  if (ear) silence(ear);
  card.querySelector(".known").hidden = true;
  for (const meter of card.querySelectorAll("meter")) meter.value = 0;
  talk(card).note(`over after ${Math.round(event.seconds || 0)} s`);
  setTimeout(() => { card.remove(); recount(); }, GONE_AFTER);
  recount();
}

function stored(card) {
  const item = make("li", "event", "");
  const page = make("a", "", "Summary stored: look at the call");
  page.href = `/calls/${card.dataset.session}`;
  item.append(page);
  talk(card).append(item);
}

const reactions = {
  dialling: (event) => state(open(event), "is called"),
  unanswered: (event) => { const card = cardOf(event.session); if (card) over(card, event); },
  ringing: (event) => state(open(event), "rings"),
  answered: (event) => state(open(event), "on the line"),
  memory: (event) => talk(open(event)).memory(event),
  turn: (event) => talk(open(event)).turn(event),
  interruption: (event) => talk(open(event)).interrupted(event),
  function_called: (event) => talk(open(event)).functionCalled(event),
  function_finished: (event) => talk(open(event)).functionFinished(event),
  engine_lost: (event) => state(open(event), "voice engine lost", true),
  engine_back: (event) => state(open(event), "on the line"),
  media_lost: (event) => state(open(event), "stream lost", true),
  error: (event) => talk(open(event)).note(`${event.what}: ${event.reason}`),
  hangup: (event) => {
    const card = cardOf(event.session);
    if (card) over(card, event);
    else if (unseen) { unseen -= 1; recount(); }
  },
  summary: (event) => { const card = cardOf(event.session); if (card) stored(card); },
};

const source = new EventSource(`/live/events?levels=1&since=${encodeURIComponent(lives.dataset.place)}`);
source.addEventListener("open", () => { link.textContent = ""; });
source.addEventListener("error", () => {
  link.textContent = "· connection lost, trying again";
  if (source.readyState === EventSource.CLOSED) setTimeout(comeBack, BACK_AFTER);
});

// A browser tries again by itself, but not after an error of a proxy, nor when nobody is logged in any more.
async function comeBack() {
  const answer = await fetch("/health").catch(() => null);
  if (answer?.ok) location.reload();
  else setTimeout(comeBack, BACK_AFTER);
}

for (const [name, react] of Object.entries(reactions)) {
  source.addEventListener(name, (message) => {
    if (!message.data) return;
    const event = JSON.parse(message.data);
    if (atStart.has(uuid(event.session)) && Date.parse(event.at) <= shownAt) return;
    react(event);
  });
}
source.addEventListener("levels", (message) => {
  for (const level of JSON.parse(message.data).levels) {
    const card = cardOf(level.session);
    if (!card) continue;
    card.querySelector("meter.caller").value = level.caller;
    card.querySelector("meter.agent").value = level.agent;
  }
});

async function send(form) {
  const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams([...new FormData(form), ["quietly", "1"]]) });
  if (!answer.ok) talk(form.closest("article")).note(await answer.text());
  return answer.ok;
}

function listen(button) {
  const sound = new Audio(button.dataset.sound);
  ears.set(button, sound);
  button.setAttribute("aria-pressed", "true");
  button.textContent = "Listening";
  sound.addEventListener("ended", () => silence(button));
  sound.play().catch(() => {
    if (ears.get(button) === sound) { silence(button); talk(button.closest("article")).note("This call can't be heard from here."); }
  });
}

function silence(button) {
  const sound = ears.get(button);
  ears.delete(button);
  button.setAttribute("aria-pressed", "false");
  button.textContent = "Listen in";
  if (!sound) return;
  sound.pause();
  sound.removeAttribute("src"); // else the browser reads on
  sound.load();
}

lives.addEventListener("click", (event) => {
  const button = event.target.closest(".listen");
  if (button) (ears.has(button) ? silence : listen)(button);
});

lives.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  if (button.dataset.sure && !button.dataset.asked) {
    button.dataset.asked = button.textContent;
    button.textContent = button.dataset.sure;
    setTimeout(() => { button.textContent = button.dataset.asked || button.textContent; delete button.dataset.asked; }, 4000);
    return;
  }
  if (await send(form)) form.reset();
});
for (const list of lives.querySelectorAll(".turns")) list.scrollTop = list.scrollHeight;
