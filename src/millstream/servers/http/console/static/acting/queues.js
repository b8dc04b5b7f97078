// Actions on the dead letters of a queue.

import { part } from "../api.js";
import { many } from "../format.js";
import { change } from "./access.js";
import { openForm } from "./forms.js";

/** Move all dead letters back to the queue, request by request. */
export function redrive(name, done) {
  openForm({
    title: `Redrive dead letters of ${name}`,
    text: "They become jobs of the queue again, at least once each, and count deliveries from 0.",
    button: "Redrive",
    work: async () => {
      let moved = 0;
      for (let remaining = 1; remaining > 0; ) {
        const answer = await change("POST", `/v1/queues/${part(name)}/redrive`, {});
        moved += answer.moved;
        remaining = answer.moved ? answer.remaining : 0;
        done();
      }
      return `Moved ${many(moved, "dead letter")} back to ${name}.`;
    },
  });
}

/** Delete all dead letters of a queue. */
export function purge(name, done) {
  openForm({
    title: `Purge dead letters of ${name}`,
    text: "They are deleted for good.",
    button: "Purge",
    mustType: name,
    isDanger: true,
    work: async () => {
      const { purged } = await change("DELETE", `/v1/queues/${part(name)}/dead_letters`);
      done();
      return `Deleted ${many(purged, "dead letter")} of ${name}.`;
    },
  });
}
