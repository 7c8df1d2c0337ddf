"use strict";
// Shows the rows of a widget as its stream of events sends them.
(() => {
  const widget = document.querySelector("[data-events]");
  if (!widget || !window.EventSource) return;
  const part = (name) => widget.querySelector(`[data-${name}]`);
  const status = part("status"), figures = part("figures"), table = part("table"), caption = part("caption");
  let source = null, failures = 0;

  const element = (name, text) => Object.assign(document.createElement(name), { textContent: text });
  const isTime = (value) => typeof value === "string" && /^\d{4}-\d\d-\d\dT\d\d:\d\d/.test(value);
  // Times are UTC; decimals come as text, so that they stay exact.
  const shown = (value, number) => {
    if (value === null) return "–";
    if (isTime(value)) return `${value.slice(0, 10)} ${value.slice(11, 19)} UTC`;
    if (typeof value === "object") return JSON.stringify(value);
    if (number && Number.isFinite(Number(value))) return Number(value).toLocaleString("en", { maximumSignificantDigits: 6 });
    return String(value);
  };
  const words = (name) => name.replaceAll("_", " ");

  const showFigures = (data) => {
    figures.replaceChildren(...data.columns.map(({ name, number }) => {
      const pair = document.createElement("div");
      pair.append(element("dt", words(name)), element("dd", shown(data.rows[0][name], number)));
      return pair;
    }));
  };
  const showTable = (data) => {
    const heads = data.columns.map(({ name, number }) => {
      const head = element("th", words(name));
      head.scope = "col";
      if (number) head.className = "number";
      return head;
    });
    // The first column of numbers has bars.
    const measure = data.columns.find(({ number }) => number);
    const most = Math.max(0, ...data.rows.map((row) => (measure ? Number(row[measure.name]) : 0)));
    const rows = data.rows.map((values) => {
      const row = document.createElement("tr");
      row.append(...data.columns.map((column) => {
        const cell = element("td", shown(values[column.name], column.number));
        if (column.number) cell.className = "number";
        if (column === measure && most > 0) {
          cell.classList.add("bar");
          cell.style.setProperty("--share", `${Math.max(0, 100 * Number(values[column.name]) / most)}%`);
        }
        return cell;
      }));
      return row;
    });
    table.querySelector("thead").replaceChildren(element("tr", ""));
    table.querySelector("thead tr").append(...heads);
    table.querySelector("tbody").replaceChildren(...rows);
    caption.textContent = data.is_truncated ? `the first ${data.rows.length} rows` : `${data.rows.length} rows`;
  };
  const show = (data) => {
    const single = data.rows.length === 1;
    if (single) showFigures(data); else showTable(data);
    figures.hidden = !single;
    table.hidden = single;
    status.textContent = `Changed at ${shown(data.at)}.`;
    status.className = "quiet";
  };
  const problem = (text) => {
    status.textContent = text;
    status.className = "bad";
  };

  const open = () => {
    source = new EventSource(widget.dataset.events);
    source.addEventListener("message", (event) => { failures = 0; show(JSON.parse(event.data)); });
    source.addEventListener("problem", (event) => { failures = 0; problem(JSON.parse(event.data).problem); });
    source.addEventListener("error", () => {
      // A connection that ended is opened again by the browser; one that was refused is not.
      if (source.readyState !== EventSource.CLOSED) return;
      failures = Math.min(failures + 1, 6);
      problem("The stream of this widget was refused or has no place. It is tried again.");
      setTimeout(open, 5000 * 2 ** (failures - 1));
    });
  };
  open();
  // Pages in the browser's history keep no connection.
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
})();
