// Keeps what is shown live, and remembers nothing. Without it a page shows what was when it was loaded.
"use strict";

// A part is left alone while it is being read or used.
const isInUse = (part) => {
    const selection = window.getSelection();
    const isSelected = !selection.isCollapsed && part.contains(selection.anchorNode);
    return isSelected || part.contains(document.activeElement) || part.querySelector("details[open]") !== null;
};

// The server has escaped the text, and the page's policy lets no script in it run.
const fill = (part, html) => {
    if (!isInUse(part) && part.innerHTML !== html) {
        part.innerHTML = html;
    }
};

// The parts of the first page come as events.
const parts = document.querySelectorAll("[data-live]");
if (parts.length > 0 && window.EventSource) {
    const events = new EventSource("/ui/live");
    for (const part of parts) {
        events.addEventListener(part.dataset.live, (event) => fill(part, event.data));
    }
    window.addEventListener("pagehide", () => events.close());
}

// A part of another page is taken from the same page, which is asked for again after some seconds.
for (const part of document.querySelectorAll("[data-refresh]")) {
    let isAsked = false;
    window.setInterval(async () => {
        if (isAsked || document.hidden || isInUse(part)) {
            return;
        }
        isAsked = true;
        const response = await fetch(window.location.href).catch(() => null);
        isAsked = false;
        if (response === null || !response.ok) {
            return;
        }
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        const now = page.getElementById(part.id);
        if (now !== null) {
            fill(part, now.innerHTML);
        }
    }, 1000 * Number(part.dataset.refresh));
}

// A narrow screen shows filters when they are asked for.
for (const details of document.querySelectorAll("[data-opens-when-wide]")) {
    details.open ||= window.matchMedia("(min-width: 601px)").matches;
}

// Filters apply as soon as they are chosen.
for (const form of document.querySelectorAll("[data-submits-itself]")) {
    form.addEventListener("change", () => form.requestSubmit());
}
