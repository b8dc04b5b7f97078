// Who uses the page: the token, and what the node says about its owner.
//
// The token is kept for this tab only, as long as it is open (sessionStorage). It is sent in a header
// of requests to the node, and is never part of an address.

const KEY = "millstream.token";
const ANONYMOUS = "User:ANONYMOUS";

/** Emits `change` when somebody logs in or out, or the node refuses the token. */
export const session = new (class extends EventTarget {
  #token = stored();

  #isWanted = false;

  /** What the node says about the caller; null until it has answered. */
  identity = null;
  /** Why the last login ended, in words. */
  reason = "";

  get token() {
    return this.#token;
  }

  /** Headers that say who sends a request. */
  get headers() {
    return headersOf(this.#token);
  }

  /** Whether somebody has logged in with a token. */
  get isLoggedIn() {
    return this.#token !== null;
  }

  /** Whether the caller may do something to the cluster. */
  may(operation) {
    return Boolean(this.identity?.cluster.includes(operation));
  }

  /** Whether nobody has logged in, and the node has logins. */
  get isAnonymous() {
    return Boolean(this.identity?.enabled && this.identity.principal === ANONYMOUS);
  }

  /** Whether there is something to see without a login. */
  get isOpen() {
    return this.may("describe") || this.identity?.reads === "open";
  }

  /** Whether a token is asked for, instead of a view. */
  get isAsked() {
    return this.#isWanted || (this.isAnonymous && !this.isOpen);
  }

  /** Note what the node says about the caller. */
  know(identity) {
    if (JSON.stringify(identity) === JSON.stringify(this.identity)) return;
    this.identity = identity;
    this.#changed();
  }

  /** Use a token that the node has accepted. */
  begin(token, identity) {
    this.#token = token;
    store(token);
    this.reason = "";
    this.#isWanted = false;
    this.identity = identity;
    this.#changed();
  }

  /** Forget the token; with a reason, ask for another one. */
  end(reason = "") {
    this.#token = null;
    store(null);
    this.reason = reason;
    this.#isWanted = reason !== "";
    this.identity = null;
    this.#changed();
  }

  /** Ask for a token, or stop asking, though some things can be seen without. */
  ask(isWanted = true) {
    this.#isWanted = isWanted;
    this.reason = "";
    this.#changed();
  }

  /** The node refused a request because of who sent it. */
  refused(token, message) {
    if (token === null || token !== this.#token) return; // Or another one has logged in meanwhile.
    this.end(`You were logged out: ${message}.`);
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
})();

/** Return the headers of a token. */
export function headersOf(token) {
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // A browser may keep pages from storing anything.
  }
}

function store(token) {
  try {
    if (token === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, token);
  } catch {
    // Without storage, the login lasts until the page is loaded again.
  }
}
