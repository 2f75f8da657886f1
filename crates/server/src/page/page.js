// Keeps parts of the first page live, and remembers nothing. Without it the page shows what was when it was loaded.
"use strict";
const parts = document.querySelectorAll("[data-live]");
if (parts.length > 0 && window.EventSource) {
    const events = new EventSource("/ui/live");
    const isInUse = (part) => {
        const selection = window.getSelection();
        const isSelected = !selection.isCollapsed && part.contains(selection.anchorNode);
        return isSelected || part.contains(document.activeElement);
    };
    for (const part of parts) {
        events.addEventListener(part.dataset.live, (event) => {
            if (!isInUse(part)) {
                // The server has escaped it, and the page's policy lets no script in it run.
                part.innerHTML = event.data;
            }
        });
    }
    window.addEventListener("pagehide", () => events.close());
}
