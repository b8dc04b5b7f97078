// The frame around the views: navigation, state of the node, keys, and the current view.

import { noteAccess } from "./acting/access.js";
import { askWho, get, node, Refused, repeat } from "./api.js";
import { fill, h, icon, say, setText } from "./dom.js";
import { duration, visible } from "./format.js";
import { bind, listen, moveRow } from "./keys.js";
import { loading, nothing } from "./parts.js";
import { above, link, parse, VIEWS } from "./routes.js";
import { session } from "./session.js";
import { showAccess } from "./views/access.js";
import { showClients } from "./views/clients.js";
import { showCluster } from "./views/cluster.js";
import { showGroup } from "./views/group.js";
import { showGroups } from "./views/groups.js";
import { showHealth } from "./views/health.js";
import { showLogin } from "./views/login.js";
import { showOverview } from "./views/overview.js";
import { showPipelines } from "./views/pipelines.js";
import { showQueue } from "./views/queue.js";
import { showQueues } from "./views/queues.js";
import { showTail } from "./views/tail.js";
import { showTopic } from "./views/topic.js";
import { showTopics } from "./views/topics.js";

const STATUS_MS = 2_000;
const DIGITS_MAX = 9;

const LISTS = {
  overview: showOverview,
  topics: showTopics,
  tail: showTail,
  groups: showGroups,
  queues: showQueues,
  pipelines: showPipelines,
  clients: showClients,
  health: showHealth,
  cluster: showCluster,
  access: showAccess,
};

const THINGS = { topics: showTopic, groups: showGroup, queues: showQueue };

const main = document.getElementById("main");
const nav = document.getElementById("nav");
let leaving = new AbortController();
let isFirst = true;

/** Show the view of the address. Its signal is aborted when the view is left.
 *
 * Until it is known who uses the page, nothing is requested; the login is shown instead of a view.
 */
function showView() {
  leaving.abort();
  leaving = new AbortController();
  document.body.classList.toggle("is-asked", session.isAsked);
  if (session.isAsked || session.identity === null) {
    const place = h("div.view");
    fill(main, place);
    if (session.isAsked) {
      document.title = "Log in · Millstream";
      showLogin(place);
    } else fill(place, loading());
    return;
  }
  const { names, query } = parse(location.hash);
  const [view, ...rest] = names;
  const show = rest.length ? THINGS[view] : LISTS[view];
  for (const entry of nav.children)
    if (entry.dataset.view === view) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  const place = h("div.view");
  place.dataset.view = rest.length ? `${view}-thing` : view;
  fill(main, place);
  scrollTo(0, 0);
  const title = VIEWS.find((one) => one.name === view)?.title;
  document.title = [rest[0] && visible(rest[0]), title, "Millstream"].filter(Boolean).join(" · ");
  if (show) show(place, { names: rest, query, signal: leaving.signal });
  else fill(place, nothing("This view does not exist", "Choose a view from the navigation."));
  if (!isFirst) {
    say(title ?? "");
    // Focus moves to the start of the view, as with a new page.
    place.querySelector("h1")?.focus({ preventScroll: true });
  }
  isFirst = false;
}

function showNavigation() {
  for (const [at, { name, title, letter }] of VIEWS.entries()) {
    const digit = at < DIGITS_MAX ? `${at + 1}, ` : "";
    const hint = `${title} (${digit}g ${letter})`;
    const entry = h("a", { href: link(name), title: hint }, icon(name), h("span", null, title));
    entry.dataset.view = name;
    nav.append(entry);
    const open = () => void (location.hash = link(name));
    if (digit) bind(String(at + 1), open);
    bind(`g ${letter}`, open);
  }
}

function watchNode() {
  const dot = document.getElementById("node-dot");
  const text = document.getElementById("node-text");
  const banner = document.getElementById("banner");
  const never = new AbortController().signal;
  let told = null;

  function show() {
    const status = node.isReached ? (told?.status ?? "connecting") : "not reachable";
    const isGood = status === "ready" && !told?.problems.length;
    dot.className = `dot ${isGood ? "good" : status === "connecting" ? "plain" : node.isReached ? "warn" : "bad"}`;
    const problems = told?.problems.length ? ", with problems" : "";
    const name = told?.node_id === undefined ? "Node" : `Node ${told.node_id}`;
    const words = told ? `${name} ${status}${node.isReached ? problems : ""}` : status;
    setText(text, words);
    text.parentElement.title = told?.version
      ? `Millstream ${told.version}, up for ${duration(told.uptime_ms)}`
      : "";
  }

  let isKnown = false;
  node.addEventListener("change", () => {
    isKnown = false; // Another process may answer from now on.
    banner.hidden = node.isReached;
    document.body.classList.toggle("is-stale", !node.isReached);
    if (node.isReached) say("The node is reachable again.");
    else
      fill(
        banner,
        h("strong", null, "The node is not reachable."),
        " Retrying every second; the data shown may be outdated.",
      );
    show();
  });
  const refresh = repeat(
    STATUS_MS,
    never,
    async () => {
      if (!isKnown || session.identity === null) {
        isKnown = true;
        session.know(await askWho());
      }
      told = session.may("describe") ? await get("/v1/node") : await askHealth();
      show();
    },
    show,
  );
  session.addEventListener("change", () => {
    told = null;
    if (session.identity === null) refresh();
    else noteAccess(session.identity.console);
    showIdentity();
    showView();
  });
}

/** Return the state of the node as everyone may know it. */
async function askHealth() {
  try {
    return await get("/health/ready");
  } catch (error) {
    if (error instanceof Refused && error.status === 503) return { status: "not ready", problems: [] };
    throw error;
  }
}

/** Show who uses the page, and which views that opens. */
function showIdentity() {
  const { identity } = session;
  const place = document.getElementById("identity");
  place.hidden = !identity?.enabled || session.isAsked;
  for (const entry of nav.children)
    if (entry.dataset.view === "access") entry.hidden = !(identity?.enabled && session.may("describe"));
  if (place.hidden) return;
  const [text, title, work] = session.isLoggedIn
    ? ["Log out", `Token ${identity.token}`, () => session.end()]
    : ["Log in", "Nobody has logged in with a token", () => session.ask()];
  const name = identity.principal.replace(/^User:/, "");
  fill(place, h("span", { title: visible(title) }, visible(session.isAnonymous ? "not logged in" : name)), h("button.quiet", { type: "button", onclick: work }, text));
}

function showTheme() {
  const button = document.getElementById("theme");
  const show = (choice) => {
    setText(button, { system: "Auto", light: "Light", dark: "Dark" }[choice]);
    button.title = `Colors: ${choice} (d)`;
    button.setAttribute("aria-label", `Colors: ${choice}. Press to change.`);
  };
  const turn = () => show(window.millstreamTheme.turn());
  button.addEventListener("click", turn);
  bind("d", turn);
  show(window.millstreamTheme.now());
}

const KEYS = [
  ["Go to", VIEWS.map(({ title, letter }, at) => [[...(at < DIGITS_MAX ? [String(at + 1)] : []), `g ${letter}`], title])],
  [
    "Everywhere",
    [
      [["/"], "Search or filter"],
      [["j", "↓"], "Next row"],
      [["k", "↑"], "Previous row"],
      [["Enter"], "Open the row"],
      [["Esc"], "Leave the field or go back"],
      [["d"], "Colors: system, light, dark"],
      [["?"], "This help"],
    ],
  ],
  [
    "Tail",
    [
      [["p", "Space"], "Pause or resume"],
      [["c"], "Clear"],
    ],
  ],
  ["Chart", [[["←", "→"], "Move along the time axis"]]],
];

function showHelp() {
  const dialog = document.getElementById("help");
  const key = (one) => one.split(" ").map((word) => h("kbd", null, word));
  const sections = KEYS.map(([title, entries]) =>
    h(
      "section",
      null,
      h("h3", null, title),
      h(
        "dl.keys",
        null,
        entries.map(([keys, text]) => [
          h("dt", null, keys.flatMap((one, at) => (at ? [h("i", null, "or"), ...key(one)] : key(one)))),
          h("dd", null, text),
        ]),
      ),
    ),
  );
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  fill(dialog, h("header", null, h("h2", { id: "help-title" }, "Keyboard"), close), h("div.help", null, sections));
  const open = () => dialog.open || dialog.showModal();
  document.getElementById("help-button").addEventListener("click", open);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  bind("?", open);
}

function bindKeys() {
  bind("/", () => {
    const field = document.querySelector("main [data-search]");
    if (!field) return false;
    field.focus();
    field.select();
    return true;
  });
  for (const key of ["j", "ArrowDown"]) bind(key, () => moveRow(1));
  for (const key of ["k", "ArrowUp"]) bind(key, () => moveRow(-1));
  bind("Escape", () => {
    const target = above(location.hash);
    if (target) location.hash = target;
  });
  listen();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // The hash names views.
  main.focus();
});
addEventListener("hashchange", showView);
showNavigation();
showTheme();
showHelp();
bindKeys();
showIdentity();
watchNode();
showView();
