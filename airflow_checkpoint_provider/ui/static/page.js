// Keeps a page fresh, shows times in the viewer's zone, follows Airflow's theme, copies commands.
"use strict";

const said = document.getElementById("said");

// -- times ------------------------------------------------------------------------------------------------------------

function zone() {
  try {  // the zone that the viewer has chosen in Airflow
    const chosen = JSON.parse(localStorage.getItem("timezone"));
    new Intl.DateTimeFormat(undefined, { timeZone: chosen });
    return chosen || undefined;
  } catch {
    return undefined;
  }
}

const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });

function ago(moment) {
  const seconds = Math.round((moment - Date.now()) / 1000);
  if (Math.abs(seconds) < 1) return "now";
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size);
  return relative.format(Math.trunc(seconds / size), unit);
}

function showTimes() {
  const timeZone = zone();
  const format = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium", timeZone });
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const text = `${format.format(moment)} (${ago(moment)})`;
    if (time.textContent !== text) time.textContent = text;
    time.title = `${time.dateTime} in UTC`;
  }
}

// -- Airflow's theme --------------------------------------------------------------------------------------------------

function followTheme() {
  let outside;
  try {
    outside = window.parent !== window && window.parent.document.documentElement;
  } catch {
    return;  // in a page of another origin
  }
  if (!outside) return;
  const page = document.documentElement;
  const copy = () => {
    page.style.setProperty("--page", getComputedStyle(outside.ownerDocument.body).backgroundColor);
    for (const theme of ["light", "dark"]) page.classList.toggle(theme, outside.classList.contains(theme));
  };
  copy();
  new MutationObserver(copy).observe(outside, { attributes: true, attributeFilter: ["class"] });
}

// -- links that leave these pages ---------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[target]");
  if (!link || window.parent === window) return;
  event.preventDefault();  // Airflow's frame lets nothing out of it, but its own page may go there
  const outside = window.top.document.createElement("a");
  Object.assign(outside, { href: link.href, target: link.target, rel: link.rel });
  outside.click();
});

// -- commands ---------------------------------------------------------------------------------------------------------

function showButtons() {
  for (const button of document.querySelectorAll("button[data-copy]")) button.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const code = document.getElementById(button.dataset.copy);
  getSelection().selectAllChildren(code);
  let copied = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {  // not on https, or not allowed
    copied = document.execCommand("copy");
  }
  said.textContent = copied ? "Copied." : "The command is selected; copy it with the keyboard.";
  if (copied) getSelection().removeAllRanges();  // or the page would not be refreshed
});

// -- refresh ----------------------------------------------------------------------------------------------------------

let tag = null;

function place(element) {
  // Where an element stands below the nearest one with an id: the same place in the next version of the page.
  const steps = [];
  let at = element;
  while (at && !at.id) {
    steps.unshift([...at.parentElement.children].indexOf(at));
    at = at.parentElement;
  }
  return { id: at?.id, steps, name: element.localName };
}

function found({ id, steps, name }) {
  const there = steps.reduce((at, step) => at?.children[step], id ? document.getElementById(id) : null);
  return there?.localName === name ? there : null;
}

function keepNodes(main, fresh) {
  // An image that is there need not be loaded again; an alert that was read out is not new.
  for (const old of main.querySelectorAll("img[src]")) {
    const same = [...fresh.querySelectorAll("img[src]")].find((image) => image.getAttribute("src") === old.getAttribute("src"));
    same?.replaceWith(old);
  }
  for (const old of main.querySelectorAll("[role=alert]")) {
    const same = [...fresh.querySelectorAll("[role=alert]")].find((alert) => alert.textContent === old.textContent);
    same?.replaceWith(old);
  }
}

function replaceMain(html) {
  const next = new DOMParser().parseFromString(html, "text/html");
  const main = document.getElementById("main");
  const fresh = next.getElementById("main");
  if (!fresh) return;
  const focused = main.contains(document.activeElement) ? place(document.activeElement) : null;
  for (const old of main.querySelectorAll("details[id]")) {
    const same = next.getElementById(old.id);
    if (same) same.open = old.open;
  }
  const scrolled = [...main.querySelectorAll(".wide")].map((box) => box.scrollLeft);
  document.title = next.title;
  document.adoptNode(fresh);
  keepNodes(main, fresh);
  main.replaceWith(fresh);
  [...fresh.querySelectorAll(".wide")].forEach((box, index) => { box.scrollLeft = scrolled[index] ?? 0; });
  if (focused) found(focused)?.focus({ preventScroll: true });
  showButtons();
  showTimes();
}

async function refresh() {
  if (document.hidden) return;
  if (!getSelection().isCollapsed) {
    said.textContent = "Refresh waits while text is selected.";
    return;
  }
  try {
    const answer = await fetch(location.href, {
      headers: tag ? { "If-None-Match": tag } : {},
      signal: AbortSignal.timeout(15000),
    });
    said.textContent = "";
    if (answer.status === 304) {
      showTimes();
      return;
    }
    if (!answer.ok) {
      said.textContent = `Airflow answers with ${answer.status}. What is shown may be old.`;
      return;
    }
    tag = answer.headers.get("ETag");
    replaceMain(await answer.text());
  } catch {
    said.textContent = "Airflow does not answer. What is shown may be old.";
  }
}

function keepFresh() {
  const seconds = Number(document.getElementById("main").dataset.every);
  if (!seconds) return;  // a page that does not change
  setTimeout(async () => {
    await refresh();
    keepFresh();
  }, seconds * 1000);
}

followTheme();
showTimes();
showButtons();
setInterval(showTimes, 10000);
keepFresh();
