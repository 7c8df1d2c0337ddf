"use strict";
// Theme, polling, ages, and navigation within Airflow's frame. Pages are readable without it.
(() => {
  const root = document.documentElement;
  const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem(name, value); } catch { /* a private window */ } };

  // Airflow's theme setting, shared by pages of one origin.
  const theme = () => {
    const chosen = (stored("theme") || "").replace(/"/g, "");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen; else delete root.dataset.theme;
  };
  theme();
  window.addEventListener("storage", (event) => { if (event.key === "theme") theme(); });

  const text = (seconds) => {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 120) return `${whole} s`;
    if (whole < 7200) return `${Math.round(whole / 60)} min`;
    if (whole < 172800) return `${(whole / 3600).toFixed(1).replace(/\.0$/, "")} h`;
    return `${Math.round(whole / 86400)} d`;
  };
  const ages = () => {
    for (const item of document.querySelectorAll("time[data-age]")) {
      const words = text(Math.abs(Date.now() - Date.parse(item.dateTime)) / 1000);
      if (item.textContent !== words) item.textContent = words;
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    const regions = () => document.querySelectorAll("[data-polled]");
    const interval = document.getElementById("interval");
    const pause = document.getElementById("pause");
    const asOf = document.getElementById("as-of");
    const announcer = document.getElementById("announcer");
    let timer = 0, failures = 0, ended = false, verdict = "";

    const spoken = () => {
      const item = document.querySelector("[data-announce]");
      const words = item ? item.dataset.announce : "";
      if (verdict && words !== verdict) announcer.textContent = words;
      verdict = words;
    };
    const paused = () => pause.getAttribute("aria-pressed") === "true";
    const schedule = () => {
      clearTimeout(timer);
      const seconds = Number(interval.value);
      if (ended || !seconds || paused() || document.hidden || !window.htmx) return;
      const step = Math.min(seconds * 2 ** failures, 300) * (0.9 + 0.2 * Math.random());
      timer = setTimeout(renew, step * 1000);
    };
    const renew = () => {
      for (const region of regions()) window.htmx.trigger(region, "renew");
      schedule();
    };

    interval.value = stored("deltaworks.interval") || "10";
    if (!interval.value) interval.value = "10";
    interval.addEventListener("change", () => { store("deltaworks.interval", interval.value); schedule(); });
    pause.addEventListener("click", () => {
      pause.setAttribute("aria-pressed", String(!paused()));
      pause.textContent = paused() ? "resume" : "pause";
      schedule();
    });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && Number(interval.value) && !paused() && !ended && window.htmx) renew(); else schedule();
    });
    // Cards stay open or folded when the page is renewed.
    const opened = new Map();
    document.addEventListener("toggle", (event) => {
      if (event.target.matches?.("details[data-key]")) opened.set(event.target.dataset.key, event.target.open);
    }, true);
    document.body.addEventListener("htmx:afterSwap", () => {
      failures = 0;
      for (const card of document.querySelectorAll("details[data-key]")) {
        if (opened.has(card.dataset.key)) card.open = opened.get(card.dataset.key);
      }
      ages();
      spoken();
      root.classList.remove("old");
      const judged = document.querySelector("[data-as-of]");
      asOf.textContent = `as of ${judged ? judged.dataset.asOf : `${new Date().toISOString().slice(11, 19)} UTC`}`;
    });
    // The page's data are still being read: the last page stays, greyed, until they have been.
    document.body.addEventListener("htmx:afterRequest", (event) => {
      if (event.detail.xhr?.status !== 204) return;
      root.classList.add("old");
      clearTimeout(timer);
      timer = setTimeout(renew, 1000);
    });
    document.body.addEventListener("htmx:responseError", (event) => {
      failures = Math.min(failures + 1, 6);
      if (event.detail.xhr.status === 401) {
        ended = true;
        document.getElementById("logged-out").hidden = false;
      }
      schedule();
    });
    document.body.addEventListener("htmx:sendError", () => { failures = Math.min(failures + 1, 6); schedule(); });

    document.getElementById("copy-address").addEventListener("click", async (event) => {
      await copy(location.href, event.currentTarget);
    });
    const copy = async (words, item) => {
      try {
        await navigator.clipboard.writeText(words);
        announcer.textContent = "copied";
        item.classList.add("good");
        setTimeout(() => item.classList.remove("good"), 1500);
      } catch { announcer.textContent = words; }
    };

    document.body.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-airflow-link]");
      if (link && window.parent !== window) {
        // A frame may not open Airflow's pages, so the parent page navigates.
        event.preventDefault();
        window.parent.history.pushState(null, "", link.href);
        window.parent.dispatchEvent(new PopStateEvent("popstate"));
        return;
      }
      const command = event.target.closest("[data-copy]");
      if (command) copy(command.textContent, command);
      const opener = event.target.closest("[data-opens]");
      if (opener && (opener.form?.reportValidity() ?? true)) {
        const dialog = document.getElementById(opener.dataset.opens);
        const chosen = dialog?.querySelector("[data-chosen]");
        // Shows the form values to be sent, as text.
        if (chosen && opener.form) {
          chosen.replaceChildren();
          for (const [name, value] of new FormData(opener.form)) {
            if (name.startsWith("_") || !value) continue;
            const term = document.createElement("dt"), detail = document.createElement("dd");
            term.textContent = name;
            detail.textContent = value;
            const pair = document.createElement("div");
            pair.append(term, detail);
            chosen.append(pair);
          }
        }
        dialog?.showModal();
      }
      const closer = event.target.closest("[data-closes]");
      if (closer) closer.closest("dialog")?.close();
    });
    document.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches?.("[data-copy]")) copy(event.target.textContent, event.target);
    });

    spoken();
    setInterval(ages, 5000);
    schedule();
  });
})();
