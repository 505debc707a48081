// What is shown stands in the address, behind the #: a reload or a link shows the same.

import { byId } from "esper/format";

export function shownParams() {
  return new URLSearchParams(location.hash.slice(1));
}

// Keeps the parameters that others have written; an empty value removes one.
export function showInAddress(values) {
  const params = shownParams();
  for (const [name, value] of Object.entries(values)) {
    params.delete(name);
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== "") params.append(name, item);
    }
  }
  const text = params.toString();
  // Not `history`: a page opened from disk may change nothing of its address but this.
  if (text !== location.hash.slice(1)) location.replace(`#${text}`);
}

// Below which path the server has the routes of this page's run.
export function base() {
  return document.querySelector('meta[name="esper-base"]')?.content ?? "";
}

// The address of another page of this server, with the token if there is one.
export function pageAddress(path, params = "") {
  return path + location.search + (params ? `#${params}` : "");
}

// A jump within the page that leaves the address alone.
export function jumpTo(id) {
  byId(id).scrollIntoView({ block: "start" });
}
