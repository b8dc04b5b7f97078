// Functions that create elements. Texts become text nodes only, so no key, value or name can become
// markup.

/** Create an element: `h("a.link", {href: "#/topics"}, "Topics")`. */
export function h(kind, properties, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  set(element, properties);
  element.append(...children.flat(Infinity).filter(isThere));
  return element;
}

/** Create an SVG element. */
export function svg(kind, properties, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  set(element, properties);
  element.append(...children.flat(Infinity).filter(isThere));
  return element;
}

/** Return one of the page's icons. */
export function icon(name) {
  return svg("svg.icon", { "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));
}

function set(element, properties) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value);
  }
}

function isThere(child) {
  return child !== null && child !== undefined && child !== false;
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(isThere));
  return element;
}

/** Set a text if it differs, so that selections and screen readers are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute if it differs. */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Announce something to screen readers. */
export function say(text) {
  setText(document.getElementById("said"), text);
}
