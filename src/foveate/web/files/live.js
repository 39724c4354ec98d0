// Keeps a page up to date: told that something has changed, it asks for the page again and puts in what differs.
"use strict";

(() => {
  const status = document.getElementById("live");
  const address = status?.dataset.events;
  if (!address) return;

  const LEAST_PAUSE_MS = 1500;
  let asking = false;
  let again = false;
  let lastMs = 0;

  const say = (text, state) => {
    if (status.dataset.state === state) return;
    status.dataset.state = state;
    status.textContent = text;
  };

  // What somebody has opened, typed or focused stays as it is.
  const stateOf = (part) => ({
    open: new Set([...part.querySelectorAll("details[open]")].map(nameOf)),
    focus: part.contains(document.activeElement) ? nameOf(document.activeElement) : null,
  });
  const nameOf = (element) => {
    if (element.id) return `#${element.id}`;
    if (element.dataset.name) return `=${element.dataset.name}`;
    const owner = element.closest("[id], [data-name]");
    const within = owner ?? document.body;
    const alike = [...within.querySelectorAll(element.tagName)];
    return `${owner ? nameOf(owner) : ""} ${element.tagName} ${alike.indexOf(element)}`;
  };

  const replace = (old, fresh) => {
    const { open, focus } = stateOf(old);
    const put = document.importNode(fresh, true);
    old.replaceWith(put);
    for (const element of put.querySelectorAll("details")) if (open.has(nameOf(element))) element.open = true;
    if (focus) {
      const found = [...put.querySelectorAll("a, button, summary, input, select, [tabindex]")];
      found.find((element) => nameOf(element) === focus)?.focus({ preventScroll: true });
    }
  };

  const update = (fresh) => {
    for (const part of fresh.querySelectorAll("[data-part]")) {
      const old = document.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
      if (!old || old.dataset.settled !== undefined) continue;
      if (window.foveateCharts?.update(old, part)) continue;
      if (old.innerHTML !== part.innerHTML) replace(old, part);
    }
    document.title = fresh.title;
    document.dispatchEvent(new CustomEvent("foveate:updated"));
  };

  const ask = async () => {
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    await new Promise((done) => setTimeout(done, Math.max(0, lastMs + LEAST_PAUSE_MS - Date.now())));
    lastMs = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const known = [...document.querySelectorAll("main [data-part]")].map((part) => part.dataset.part).join();
      const now = [...fresh.querySelectorAll("main [data-part]")].map((part) => part.dataset.part).join();
      // Another page stands there now: one that could not be shown, or can again.
      if (known !== now) location.reload();
      else update(fresh);
    } catch {
      say("Not connected: trying again", "away");
    }
    asking = false;
    if (again) {
      again = false;
      ask();
    }
  };

  const events = new EventSource(address);
  let wasAway = false;
  events.addEventListener("open", () => {
    say("Live", "live");
    if (wasAway) ask();
    wasAway = false;
  });
  events.addEventListener("changed", ask);
  events.addEventListener("error", () => {
    wasAway = true;
    say("Not connected: trying again", "away");
  });
  addEventListener("pagehide", () => events.close());
})();
