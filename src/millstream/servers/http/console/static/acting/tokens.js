// Actions on tokens: revoke.

import { part } from "../api.js";
import { session } from "../session.js";
import { change } from "./access.js";
import { openForm } from "./forms.js";

/** Revoke a token, after a question. */
export function revokeToken({ id, user, note }, done) {
  const isOwn = session.identity?.token === id;
  openForm({
    title: `Revoke token ${id}`,
    text: `Programs that use this token of ${user}${note ? ` (${note})` : ""} are cut off within a second.${isOwn ? " You have logged in with it yourself." : ""}`,
    button: "Revoke",
    isDanger: true,
    work: async () => {
      await change("DELETE", `/v1/access/tokens/${part(id)}`);
      done();
      return `Revoked token ${id} of ${user}.`;
    },
  });
}
