// Keeps a page up to date: told that something has changed, it asks for the page again and puts in what differs.
"use strict";

(() => {
  const status = document.getElementById("live");
  if (!status?.dataset.events) return;

  const LEAST_PAUSE_MS = 1500;
  // A page that takes long is asked for less often: so many times what it took lies between two.
  const PAUSE_PER_LOAD = 10;
  const AGAIN_MS = 5000;
  // Times are told as "5 min ago": so often they are told anew where nothing else happens.
  const OLD_MS = 60_000;
  let events = null;
  let isAsking = false;
  let isWanted = false;
  let notBeforeMs = 0;
  let askedMs = Date.now();

  const say = (text, state) => {
    if (status.dataset.state === state) return;
    status.dataset.state = state;
    status.textContent = text;
  };
  const away = () => say("Not connected: trying again", "away");
  const pause = (ms) => new Promise((done) => setTimeout(done, Math.max(0, ms)));

  // What an element is called, so that the one in its place can be found.
  const nameOf = (element) => {
    if (element.id) return `#${element.id}`;
    if (element.dataset.name) return `=${element.dataset.name}`;
    const owner = element.parentElement?.closest("[id], [data-name]");
    const alike = [...(owner ?? document.body).querySelectorAll(element.tagName)];
    return `${owner ? nameOf(owner) : ""} ${element.tagName} ${alike.indexOf(element)}`;
  };

  // What somebody is in the middle of: typing, or marking a text to copy it.
  const isInUse = (part) => {
    if (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return true;
    const marked = getSelection();
    return Boolean(marked && !marked.isCollapsed && marked.containsNode(part, true));
  };

  // What somebody has opened, scrolled or focused stays as it is.
  const replace = (old, fresh) => {
    const open = new Map([...old.querySelectorAll("details")].map((one) => [nameOf(one), one.open]));
    const scrolled = new Map(
      [...old.querySelectorAll(".scrolls, pre")]
        .filter((one) => one.scrollTop || one.scrollLeft)
        .map((one) => [nameOf(one), [one.scrollLeft, one.scrollTop]]),
    );
    const focus = old.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    const put = document.importNode(fresh, true);
    old.replaceWith(put);
    for (const one of put.querySelectorAll("details")) one.open = open.get(nameOf(one)) ?? one.open;
    for (const one of put.querySelectorAll(".scrolls, pre")) {
      const [left, top] = scrolled.get(nameOf(one)) ?? [0, 0];
      if (left || top) one.scrollTo(left, top);
    }
    if (focus) {
      const found = [...put.querySelectorAll("a, button, summary, [tabindex]")];
      found.find((one) => nameOf(one) === focus)?.focus({ preventScroll: true });
    }
  };

  const partsOf = (page) => [...page.querySelectorAll("main [data-part]")];
  const namesOf = (page) => partsOf(page).map((part) => part.dataset.part).join("\n");

  const update = (fresh) => {
    let isWhole = true;
    for (const part of partsOf(fresh)) {
      const old = document.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
      if (!old || old.dataset.settled !== undefined) continue;
      if (window.foveateCharts?.update(old, part)) continue;
      if (old.innerHTML === part.innerHTML) continue;
      if (isInUse(old)) isWhole = false;
      else replace(old, part);
    }
    document.title = fresh.title;
    status.dataset.events = fresh.getElementById("live").dataset.events ?? status.dataset.events;
    document.dispatchEvent(new CustomEvent("foveate:updated"));
    return isWhole;
  };

  const freshPage = async () => {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (answer.status === 401) return null; // asked for by itself, the browser lets one show a key
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!fresh.getElementById("live")) throw new Error("not ours: of something that stands between");
    return fresh;
  };

  const askOnce = async () => {
    askedMs = Date.now();
    let fresh;
    try {
      fresh = await freshPage();
    } catch {
      away();
      again();
      return;
    }
    notBeforeMs = Date.now() + Math.max(LEAST_PAUSE_MS, PAUSE_PER_LOAD * (Date.now() - askedMs));
    // Another page stands there now: one that could not be shown, or can again, or the first that has a chart.
    const isOther = !fresh || namesOf(document) !== namesOf(fresh);
    if (isOther || (fresh.querySelector("figure.chart") && !window.foveateCharts)) location.reload();
    else if (!update(fresh)) again();
    if (events?.readyState === EventSource.OPEN) say("Live", "live");
  };

  const ask = async () => {
    isWanted = true;
    if (isAsking) return;
    isAsking = true;
    while (isWanted) {
      await pause(notBeforeMs - Date.now());
      isWanted = false;
      await askOnce();
    }
    isAsking = false;
  };

  let waiting = 0;
  const again = () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, AGAIN_MS);
  };

  const connect = () => {
    events?.close();
    const own = new EventSource(status.dataset.events);
    events = own;
    let wasAway = false;
    own.addEventListener("open", () => {
      say("Live", "live");
      if (wasAway) ask();
      wasAway = false;
    });
    own.addEventListener("changed", ask);
    own.addEventListener("error", () => {
      wasAway = true;
      away();
      // After an answer that is none, as those of proxies are, a browser does not try again.
      if (own.readyState === EventSource.CLOSED) setTimeout(() => own === events && connect(), AGAIN_MS);
    });
  };

  // A browser has few connections to a place: a page that nobody sees leaves its own to the others.
  const seen = () => {
    if (document.visibilityState === "hidden") {
      events?.close();
      events = null;
    } else if (!events) {
      connect();
      ask();
    }
  };
  document.addEventListener("visibilitychange", seen);
  addEventListener("pagehide", () => {
    events?.close();
    events = null;
  });
  addEventListener("pageshow", (event) => event.persisted && seen());
  setInterval(() => events && Date.now() - askedMs >= OLD_MS && ask(), OLD_MS / 4);
  if (document.visibilityState !== "hidden") connect();
})();
