// The login: asks for a token, and checks it with the node before it is used.

import { askWho, Refused } from "../api.js";
import { fill, h } from "../dom.js";
import { visible } from "../format.js";
import { session } from "../session.js";

const COMMAND = "millstream access tokens create NAME";
const TOKEN = /^[\x21-\x7e]{1,1024}$/;

export function showLogin(place) {
  const field = h("input", {
    name: "token",
    type: "password",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    maxlength: "1100",
    placeholder: "ms_…",
  });
  const error = h("p.form-error", { role: "alert", hidden: true });
  const submit = h("button.primary", { type: "submit" }, "Log in");
  const canGoOn = session.isAnonymous && session.isOpen;
  const form = h(
    "form.form.card.login",
    { novalidate: true, "aria-labelledby": "login-title" },
    h("h1", { id: "login-title", tabindex: "-1" }, "Log in"),
    h("p.hint", null, "This node asks who you are. The token is kept in this tab until you log out or close it."),
    error,
    h("label.form-row", null, h("span", null, "Token"), field, h("small", null, "Administrators create one with ", h("code", null, COMMAND))),
    h(
      "footer",
      null,
      canGoOn ? h("button", { type: "button", onclick: () => session.ask(false) }, "Continue without") : null,
      submit,
    ),
  );

  function fail(message) {
    error.textContent = visible(message);
    error.hidden = false;
    field.setAttribute("aria-invalid", "true");
    field.select();
    field.focus();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = field.value.trim();
    if (submit.disabled) return;
    if (!TOKEN.test(token)) {
      fail(token === "" ? "Enter a token." : "A token has no spaces, and no other characters than ASCII.");
      return;
    }
    submit.disabled = true;
    error.hidden = true;
    try {
      session.begin(token, await askWho(token));
    } catch (reason) {
      if (!(reason instanceof Refused)) fail("The node did not respond. Try again.");
      else if (reason.status === 401) fail("The token is not valid: it is unknown, revoked or expired.");
      else fail(reason.message);
      submit.disabled = false;
    }
  });
  fill(place, form);
  if (session.reason) fail(session.reason);
  field.focus();
}
