// Filters the page by op, dtype and shape. Without it everything shows.
"use strict";
{
  const form = document.getElementById("filter");
  const wanted = form.elements;
  const parts = document.querySelectorAll("main [data-op], main [data-dtype], main [data-shape]");
  const main = document.querySelector("main");
  // What a part holds is seen or not: parts within parts, and what is wrong beside them.
  const within = [...parts].filter((part) => {
    return !part.closest("thead") && !part.querySelector("[data-op], [data-dtype], [data-shape]");
  }).concat([...main.querySelectorAll("p.bad")]);
  const boxes = [...main.querySelectorAll("section, details, .columns > *, .scroll, .pair > *")];
  const headings = [...main.querySelectorAll("section > h3")];
  const timed = [...document.querySelectorAll(".op [data-shape]")];

  // "4096, 512", "4096x512" and "4096×512" are the same; "40" begins 4096, but is not within 1400.
  const sizes = (text) => "×" + text.trim().replace(/[^0-9]+/g, "×");

  // Whether the filter hid everything that a thing, or one of several, has.
  function emptied(...things) {
    const all = within.filter((part) => things.some((thing) => thing.contains(part)));
    return all.length > 0 && all.every((part) => part.closest("[hidden]"));
  }

  // What a heading is over, up to the next.
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
    // Where none of the first lines is asked for, the others are the first.
    for (const others of document.querySelectorAll(".others")) {
      others.open = !others.previousElementSibling.querySelector("tbody tr:not([hidden])");
    }
    // A figure has bars of all shapes: those that are not asked for are pale.
    for (const bar of document.querySelectorAll("svg a")) {
      const target = document.getElementById(bar.getAttribute("href").slice(1));
      bar.classList.toggle("pale", Boolean(target && target.closest("[hidden]")));
    }
    const shown = timed.filter((each) => !each.closest("[hidden]")).length;
    form.querySelector("output").value = timed.length ? `${shown} of ${timed.length} timed cases` : "";
  }

  // Older browsers do not unfold what a link leads to.
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
  filter(); // a browser that goes back keeps what was chosen
  if (location.hash) unfold();
}
