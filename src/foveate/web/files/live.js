// Keeps a page up to date: after a change event it loads the page again and replaces what differs.
"use strict";

(() => {
  const status = document.getElementById("live");
  if (!status?.dataset.events) return;

  const LEAST_PAUSE_MS = 1500;
  // A slow page is loaded less often: this multiple of its loading time passes in between.
  const PAUSE_PER_LOAD = 10;
  const AGAIN_MS = 5000;
  // How often relative times ("5 min ago") are updated if nothing else changes.
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
  const away = () => say("Disconnected, reconnecting…", "away");
  const pause = (ms) => new Promise((done) => setTimeout(done, Math.max(0, ms)));

  // A name for an element, to find its replacement.
  const nameOf = (element) => {
    if (element.id) return `#${element.id}`;
    if (element.dataset.name) return `=${element.dataset.name}`;
    const owner = element.parentElement?.closest("[id], [data-name]");
    const alike = [...(owner ?? document.body).querySelectorAll(element.tagName)];
    return `${owner ? nameOf(owner) : ""} ${element.tagName} ${alike.indexOf(element)}`;
  };

  // Whether the user is typing or selecting text.
  const isInUse = (part) => {
    if (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return true;
    const marked = getSelection();
    return Boolean(marked && !marked.isCollapsed && marked.containsNode(part, true));
  };

  // Keeps what the user has opened, scrolled or focused.
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
    if (answer.status === 401) return null; // when navigated to, the browser asks for a key
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!fresh.getElementById("live")) throw new Error("not a page of this dashboard");
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
    // The page has another structure now: an error page, no longer one, or the first with a chart.
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
      // After an invalid response, such as that of a proxy, a browser does not reconnect by itself.
      if (own.readyState === EventSource.CLOSED) setTimeout(() => own === events && connect(), AGAIN_MS);
    });
  };

  // A browser has few connections per host: a hidden page closes its own.
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
