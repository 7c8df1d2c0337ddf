"use strict";
// Saves the filters in a dashboard's address by name, in this browser.
(() => {
  const nav = document.querySelector("nav"), chooser = nav?.querySelector("form");
  const names = [...(chooser?.querySelectorAll("select") ?? [])].map((select) => select.name);
  const key = `deltaworks.segments:${location.pathname}`, most = 20;
  if (!names.length) return;

  const isSegment = (one) => typeof one?.name === "string" && typeof one?.query === "string";
  const saved = () => {
    try { return JSON.parse(localStorage.getItem(key) ?? "[]").filter(isSegment).slice(0, most); } catch { return []; }
  };
  const store = (segments) => {
    try { localStorage.setItem(key, JSON.stringify(segments)); return true; } catch { return false; }
  };
  // Filters only, so that a segment has no time span.
  const filtersOf = (query) => {
    const given = new URLSearchParams(query);
    return new URLSearchParams(names.filter((name) => given.get(name)).map((name) => [name, given.get(name)])).toString();
  };
  const current = filtersOf(location.search);
  const element = (name, properties) => Object.assign(document.createElement(name), properties);

  const list = element("span", { className: "saved" });
  const form = element("form", { className: "save" });
  const name = element("input", { required: true, maxLength: 60, size: 14, placeholder: "name", ariaLabel: "Name of the segment" });
  const message = element("span", { role: "status" });
  form.append(name, element("button", { textContent: "save segment" }), message);
  // Without a filter there is nothing to save.
  form.hidden = !current;

  const show = () => {
    list.replaceChildren(...saved().flatMap((segment) => {
      const query = filtersOf(segment.query);
      if (!query) return [];
      const link = element("a", { className: "segment", href: `?${query}`, textContent: segment.name });
      if (query === current) link.setAttribute("aria-current", "page");
      const remove = element("button", { type: "button", textContent: "×", title: `Delete segment ${segment.name}` });
      remove.setAttribute("aria-label", remove.title);
      remove.addEventListener("click", () => {
        store(saved().filter((one) => one.name !== segment.name));
        show();
      });
      const pair = element("span", {});
      pair.append(link, " ", remove);
      return [pair];
    }));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const others = saved().filter((one) => one.name !== name.value.trim());
    if (!name.value.trim()) return;
    if (others.length >= most) message.textContent = `At most ${most} segments. Delete one first.`;
    else if (store([...others, { name: name.value.trim(), query: current }])) { name.value = ""; message.textContent = "Saved."; }
    else message.textContent = "This browser stores nothing for this page.";
    show();
  });
  // Other tabs of the page.
  window.addEventListener("storage", (event) => { if (event.key === key) show(); });
  chooser.before(list);
  chooser.after(form);
  show();
})();
