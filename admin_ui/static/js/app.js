// What the pages do beyond forms and links: the theme, copying, shortcuts, live updates.
// Everything here is a convenience: without it each screen works by forms, links and reloading.
"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const keep = (name, value) => {
    document.cookie = `${name}=${value}; path=/; max-age=31536000; samesite=lax`;
  };

  // --- theme ---
  const NEXT = { system: "light", light: "dark", dark: "system" };
  document.addEventListener("click", (event) => {
    const toggle = event.target.closest("[data-theme-toggle]");
    if (!toggle) return;
    event.preventDefault();
    const theme = NEXT[root.dataset.theme] || "light";
    root.dataset.theme = theme;
    keep("sluice_theme", theme);
    toggle.title = `Theme: ${theme}`;
    toggle.setAttribute("aria-label", `Theme: ${theme}. Change it`);
    document.dispatchEvent(new CustomEvent("theme"));
  });

  document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // --- copy, dialogs, menus ---
  const copied = async (button) => {
    const from = document.getElementById(button.dataset.copy);
    const text = from.value ?? from.textContent;
    try { await navigator.clipboard.writeText(text); } catch { from.select?.(); return; }
    const label = button.querySelector("[data-label]") || button;
    const before = label.textContent;
    label.textContent = "Copied";
    setTimeout(() => { label.textContent = before; }, 1500);
  };
  document.addEventListener("click", (event) => {
    const target = event.target;
    const copy = target.closest("[data-copy]");
    if (copy) copied(copy);
    const open = target.closest("[data-open]");
    if (open) document.getElementById(open.dataset.open)?.showModal();
    if (target.closest("[data-help]")) document.getElementById("shortcuts").showModal();
    for (const menu of all("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-keys-switch]")) {
      root.dataset.keys = event.target.checked ? "on" : "off";
      keep("sluice_keys", root.dataset.keys);
    }
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });

  // --- shortcuts ---
  let after = "";
  const step = (by) => {
    const rows = all("main table.data tbody th a[href], main table.data tbody th button");
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))].focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const menu of all("details.menu[open]")) menu.open = false;
    const typing = event.target.closest("input, select, textarea, dialog");
    if (root.dataset.keys === "off" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const before = after;
    after = "";
    if (before === "g") {
      const link = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    } else if (event.key === "g") {
      after = "g";
      setTimeout(() => { after = ""; }, 1500);
    } else if (event.key === "/") {
      document.querySelector("[data-search]")?.focus();
    } else if (event.key === "?") {
      document.getElementById("shortcuts")?.showModal();
    } else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "p") document.querySelector("[data-pause]:not([hidden])")?.click();
    else return;
    event.preventDefault();
  });

  // --- live: one stream a tab, closed while the tab is hidden ---
  const main = document.querySelector("main[data-live-url], [data-live-url]");
  const state = document.querySelector("[data-live-state]");
  const pause = document.querySelector("[data-pause]");
  let stream = null, paused = false, last = 0, said = "";
  const say = (name, text) => {
    if (said === name + text) return;
    said = name + text;
    state.dataset.state = name;
    state.textContent = text;
    document.body.classList.toggle("stale", name === "stale" || name === "lost");
  };
  const show = (snapshot) => {
    for (const place of all("[data-live]")) {
      const text = snapshot.text[place.dataset.live];
      if (text !== undefined && place.textContent !== text) place.textContent = text;
    }
    document.dispatchEvent(new CustomEvent("live", { detail: snapshot }));
  };
  const connect = () => {
    if (stream || paused || document.hidden) return;
    stream = new EventSource(main.dataset.liveUrl);
    stream.onmessage = (event) => {
      last = Date.now();
      say("live", "Live");
      show(JSON.parse(event.data));
    };
    stream.onerror = () => {
      say("lost", "Disconnected");
      // An answer that is no stream ends it for good; it is asked for again, later.
      if (stream?.readyState === EventSource.CLOSED) { stop(); setTimeout(connect, 5000); }
    };
  };
  const stop = () => { stream?.close(); stream = null; };
  if (main && state && window.EventSource) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.setAttribute("aria-label", paused ? "Go on with live updates" : "Pause live updates");
      if (paused) { stop(); say("paused", "Paused"); } else connect();
    });
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : connect()));
    window.addEventListener("pagehide", stop);
    setInterval(() => {
      const age = Math.round((Date.now() - last) / 1000);
      if (stream && last && age >= 5) say("stale", `Stale ${age} s`);
    }, 1000);
    connect();
  } else if (state) {
    state.hidden = true;
  }
})();
