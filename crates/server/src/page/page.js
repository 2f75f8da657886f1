// Keeps the list of running requests live, and remembers nothing. Without it the page shows what was when it was loaded.
"use strict";
const live = document.getElementById("live");
if (live && window.EventSource) {
    const events = new EventSource(live.dataset.live);
    events.addEventListener("now", (event) => {
        const focused = live.contains(document.activeElement);
        if (!focused) {
            // The server has escaped it, and the page's policy lets no script in it run.
            live.innerHTML = event.data;
        }
    });
    window.addEventListener("pagehide", () => events.close());
}
