// Elements, made by calls. Texts become text nodes and nothing else: there is no way through here
// by which a key, a value or a name could become markup.

/** Make an element: `h("a.link", {href: "#/topics"}, "Topics")`. */
export function h(kind, properties, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  set(element, properties);
  element.append(...children.flat(Infinity).filter(isThere));
  return element;
}

/** Make an element of a drawing. */
export function svg(kind, properties, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  set(element, properties);
  element.append(...children.flat(Infinity).filter(isThere));
  return element;
}

/** Return one of the symbols that the page has. */
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

/** Put other children into an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(isThere));
  return element;
}

/** Set a text, where it is another: what is selected or read aloud stays undisturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute, where it is another. */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Have something read aloud, when there is a pause. */
export function say(text) {
  setText(document.getElementById("said"), text);
}
