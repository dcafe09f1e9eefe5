// Times in the browser's zone. The server writes its own, for browsers without JavaScript.
"use strict";
const zonedFormat = new Intl.DateTimeFormat("en-GB", {
  weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short",
});

function timeText(date, form) {
  const at = Object.fromEntries(zonedFormat.formatToParts(date).map(({ type, value }) => [type, value]));
  const day = `${at.weekday} ${at.day} ${at.month} ${at.year}`;
  const clock = `${at.hour}:${at.minute} ${at.timeZoneName}`;
  return { day, clock, moment: `${day}, ${clock}`, ago: `${at.day} ${at.month} ${at.year}`, hour: `${at.hour}:${at.minute}`, date: `${at.day} ${at.month}`, zone: at.timeZoneName }[form];
}

function timeElement(iso, form) {
  const element = document.createElement("time");
  element.dateTime = iso;
  element.textContent = timeText(new Date(iso), form);
  return element;
}

for (const element of document.querySelectorAll("time[data-form]")) {
  const date = new Date(element.dateTime), before = element.textContent;
  if (element.dataset.form === "ago") {
    element.title = timeText(date, "moment");
    if (/\d{4}$/.test(before)) element.textContent = timeText(date, "ago"); // long ago: a date
  } else if (element.dataset.form === "row") {
    element.querySelector("b").textContent = timeText(date, "clock");
    element.querySelector("span").textContent = timeText(date, "day");
  } else {
    element.textContent = timeText(date, element.dataset.form);
    document.title = document.title.replace(before, element.textContent);
  }
}
for (const tick of document.querySelectorAll("text[data-time]")) tick.textContent = timeText(new Date(tick.dataset.time), tick.dataset.form);
for (const tip of document.querySelectorAll("title[data-since]")) {
  const [since, until] = [tip.dataset.since, tip.dataset.until].map((iso) => new Date(iso));
  tip.textContent = `${timeText(since, "date")} ${timeText(since, "hour")} to ${timeText(until, "date")} ${timeText(until, "clock")}${tip.dataset.text}`;
}
for (const zone of document.querySelectorAll("input[name='zone']")) zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone;
