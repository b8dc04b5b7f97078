// Actions on quotas: set and remove.

import { change } from "./access.js";
import { openForm } from "./forms.js";

export const RATES = [
  ["producer_byte_rate", "Produced bytes/s"],
  ["consumer_byte_rate", "Consumed bytes/s"],
  ["request_percentage", "Request time, % of one core"],
  ["controller_mutation_rate", "Partitions created or deleted/s"],
];

/** Set the quotas of a user, a client id, or both. */
export function setQuota(quota, done) {
  const entity = (name) => (typeof quota?.[name] === "string" ? quota[name] : quota?.[name] ? "*" : "");
  openForm({
    title: quota ? "Change quota" : "New quota",
    fields: [
      { name: "user", label: "User", value: entity("user"), isFixed: Boolean(quota), note: "* is the default of all; empty for any." },
      { name: "client_id", label: "Client id", value: entity("client_id"), isFixed: Boolean(quota), note: "* is the default of all; empty for any." },
      ...RATES.map(([name, label]) => ({ name, label, value: String(quota?.rates[name] ?? ""), note: "Empty for none." })),
    ],
    button: "Set",
    work: async (values) => {
      await change("PUT", "/v1/quotas", { ...named(values), rates: rates(values) });
      done();
      return "Set the quota.";
    },
  });
}

function named({ user, client_id: clientId }) {
  const found = {};
  if (user) found.user = user === "*" ? { default: true } : user;
  if (clientId) found.client_id = clientId === "*" ? { default: true } : clientId;
  if (!user && !clientId) throw new Error("A quota needs a user or a client id.");
  return found;
}

function rates(values) {
  return Object.fromEntries(
    RATES.map(([name, label]) => {
      if (values[name].trim() === "") return [name, null];
      const rate = Number(values[name]);
      if (!Number.isFinite(rate)) throw new Error(`${label} must be a number, got ${values[name]}`);
      return [name, rate];
    }),
  );
}

/** Remove all quotas of an entity. */
export function removeQuota({ user, client_id: clientId }, words, done) {
  openForm({
    title: "Remove quota",
    text: `All quotas of ${words} are removed.`,
    button: "Remove",
    isDanger: true,
    work: async () => {
      await change("DELETE", "/v1/quotas", { user, client_id: clientId });
      done();
      return `Removed the quotas of ${words}.`;
    },
  });
}
