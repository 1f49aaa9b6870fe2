// Filters the page by op, dtype and shape. Without this script everything is shown.
"use strict";
{
  const form = document.getElementById("filter");
  const wanted = form.elements;
  const parts = document.querySelectorAll("main [data-op], main [data-dtype], main [data-shape]");
  const main = document.querySelector("main");
  // The innermost parts, and lines about problems: a box is empty when all of its own are hidden.
  const within = [...parts].filter((part) => {
    return !part.closest("thead") && !part.querySelector("[data-op], [data-dtype], [data-shape]");
  }).concat([...main.querySelectorAll("p.bad")]);
  const boxes = [...main.querySelectorAll("section, details, .columns > *, .scroll, .pair > *")];
  const headings = [...main.querySelectorAll("section > h3")];
  const timed = [...document.querySelectorAll(".op [data-shape]")];

  // "4096, 512", "4096x512" and "4096×512" are equal. "40" matches the start of 4096, not 1400.
  const sizes = (text) => "×" + text.trim().replace(/[^0-9]+/g, "×");

  // Whether these elements have filtered parts and all of them are hidden.
  function emptied(...things) {
    const all = within.filter((part) => things.some((thing) => thing.contains(part)));
    return all.length > 0 && all.every((part) => part.closest("[hidden]"));
  }

  // The elements between a heading and the next one.
  function under(heading) {
    const things = [];
    for (let at = heading.nextElementSibling; at && at.tagName !== "H3"; at = at.nextElementSibling) {
      things.push(at);
    }
    return things;
  }

  function filter() {
    for (const each of document.querySelectorAll("main [hidden], nav [hidden]")) each.hidden = false;
    const shape = sizes(wanted.shape.value);
    for (const part of parts) {
      const own = part.dataset;
      part.hidden = ["op", "dtype"].some((name) => {
        return wanted[name].value && own[name] && !own[name].split(" ").includes(wanted[name].value);
      }) || Boolean(own.shape && !sizes(own.shape).includes(shape));
    }
    for (const op of document.querySelectorAll(".op")) {
      const cases = [...op.querySelectorAll("[data-shape]")];
      op.hidden = op.hidden || cases.every((each) => each.closest("[hidden]"));
    }
    for (const heading of headings) {
      const things = under(heading);
      if (emptied(...things)) for (const each of [heading, ...things]) each.hidden = true;
    }
    for (const empty of boxes.filter((box) => emptied(box))) empty.hidden = true;
    for (const link of document.querySelectorAll("nav a")) {
      const section = document.getElementById(link.hash.slice(1)).closest("section");
      link.parentElement.hidden = section.hidden;
    }
    // Unfold the other lines if the filter hides all of the first ones.
    for (const others of document.querySelectorAll(".others")) {
      others.open = !others.previousElementSibling.querySelector("tbody tr:not([hidden])");
    }
    // A figure keeps the bars of all shapes; those that the filter hides elsewhere become pale.
    for (const bar of document.querySelectorAll("svg a")) {
      const target = document.getElementById(bar.getAttribute("href").slice(1));
      bar.classList.toggle("pale", Boolean(target && target.closest("[hidden]")));
    }
    const shown = timed.filter((each) => !each.closest("[hidden]")).length;
    form.querySelector("output").value = timed.length ? `${shown} of ${timed.length} timed cases` : "";
  }

  // Unfold the target of a link; older browsers do not.
  function unfold() {
    const target = document.getElementById(location.hash.slice(1));
    for (let at = target; at; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    if (target) target.scrollIntoView();
  }

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", unfold);
  filter(); // after "back" a browser restores the form's values
  if (location.hash) unfold();
}
