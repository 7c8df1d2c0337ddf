"use strict";
// Shows the rows of a widget as its stream of events sends them.
(() => {
  const widget = document.querySelector("[data-events]");
  if (!widget || !window.EventSource) return;
  const part = (name) => widget.querySelector(`[data-${name}]`);
  const status = part("status"), figures = part("figures"), table = part("table"), caption = part("caption");
  let source = null, failures = 0, waiting = null;

  const element = (name, text) => Object.assign(document.createElement(name), { textContent: text });
  const untrusted = (text) => Object.assign(element("span", text), { className: "untrusted", dir: "auto" });
  const words = (name) => name.replaceAll("_", " ");
  // Times are UTC; decimals come as text, so that they stay exact.
  const isTime = (value) => typeof value === "string" && /^\d{4}-\d\d-\d\dT\d\d:\d\d/.test(value);
  const time = (value) => `${value.slice(0, 10)} ${value.slice(11, 19)} UTC`;
  const shown = (value, number) => {
    if (value === null) return "–";
    if (isTime(value)) return time(value);
    if (typeof value === "object") return JSON.stringify(value);
    if (number && Number.isFinite(Number(value))) return Number(value).toLocaleString("en", { maximumSignificantDigits: 6 });
    return String(value);
  };

  const showFigures = (columns, row) => {
    figures.replaceChildren(...columns.map(({ name, number }) => {
      const pair = document.createElement("div"), figure = document.createElement("dd");
      figure.append(untrusted(shown(row[name], number)));
      pair.append(element("dt", words(name)), figure);
      return pair;
    }));
  };
  const showTable = (columns, data) => {
    const heads = columns.map(({ name, number }) => {
      const head = element("th", words(name));
      head.scope = "col";
      if (number) head.className = "number";
      return head;
    });
    // The first column of numbers has bars.
    const measure = columns.find(({ number }) => number);
    const most = Math.max(0, ...data.rows.map((row) => (measure ? Number(row[measure.name]) : 0)));
    const rows = data.rows.map((values) => {
      const row = document.createElement("tr");
      row.append(...columns.map((column) => {
        const cell = document.createElement("td");
        cell.append(untrusted(shown(values[column.name], column.number)));
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
    caption.textContent = `${data.is_truncated ? "the first " : ""}${data.rows.length} row${data.rows.length === 1 ? "" : "s"}`;
  };
  const report = (tone, ...nodes) => {
    status.replaceChildren(...nodes);
    status.className = tone;
  };
  const show = (data) => {
    // A time that is the same in all rows, such as that of the newest event, is shown once.
    const [first] = data.rows;
    const isShared = ({ name }) => isTime(first?.[name]) && data.rows.every((row) => row[name] === first[name]);
    const shared = data.columns.filter(isShared), columns = data.columns.filter((column) => !isShared(column));
    const isSingle = data.rows.length === 1 && columns.length > 0;
    if (isSingle) showFigures(columns, first); else showTable(columns, data);
    figures.hidden = !isSingle;
    table.hidden = isSingle;
    const times = shared.map(({ name }) => ` ${words(name)[0].toUpperCase()}${words(name).slice(1)} ${time(first[name])}.`);
    report("quiet", `Changed at ${time(data.at)}.${times.join("")}`);
  };
  const problem = (text) => {
    // Text in backticks is a command, which a click copies.
    report("bad", ...text.split("`").map((piece, index) => {
      if (index % 2 === 0) return piece;
      const command = Object.assign(element("code", piece), { className: "command", tabIndex: 0 });
      command.dataset.copy = "";
      return command;
    }));
  };

  // While the page is paused, the newest event waits.
  const isPaused = () => document.getElementById("pause")?.getAttribute("aria-pressed") === "true";
  const take = (event) => {
    failures = 0;
    waiting = event;
    if (!isPaused()) showWaiting();
  };
  const showWaiting = () => {
    if (!waiting) return;
    const data = JSON.parse(waiting.data);
    if (waiting.type === "problem") problem(data.problem); else show(data);
    waiting = null;
  };
  document.addEventListener("click", (event) => { if (event.target.id === "pause" && !isPaused()) showWaiting(); });

  const open = () => {
    source = new EventSource(widget.dataset.events);
    source.addEventListener("message", take);
    source.addEventListener("problem", take);
    source.addEventListener("open", () => widget.classList.remove("stale"));
    source.addEventListener("error", () => {
      widget.classList.add("stale");
      // A connection that ended is opened again by the browser; one that was refused is not.
      if (source.readyState !== EventSource.CLOSED) return;
      failures = Math.min(failures + 1, 6);
      problem("The server refused the stream of this widget. Log in again if your login has ended; it is tried again.");
      setTimeout(open, 5000 * 2 ** (failures - 1));
    });
  };
  open();
  // Pages in the browser's history keep no connection.
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
})();
