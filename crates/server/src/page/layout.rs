//! The frame of all pages (head, navigation, foot), and the small parts that several of them use.

use maud::{DOCTYPE, Markup, html};

use super::format;
use super::query::{PERIODS, PageQuery};
use super::session::Viewer;

/// The page of the experts, which is in the navigation where there are any.
pub(super) const EXPERTS: &str = "/ui/experts";
/// The pages in the navigation, by path.
const PAGES: [(&str, &str); 6] = [
    ("/", "Now"),
    ("/ui/requests", "Requests"),
    ("/ui/runs", "Runs"),
    (EXPERTS, "Experts"),
    ("/ui/usage", "Usage"),
    ("/ui/approvals", "Approvals"),
];

/// Returns a whole page.
pub(super) fn page_layout(viewer: &Viewer, here: &str, title: &str, main: &Markup) -> Markup {
    let navigation = html! {
        nav aria-label="Pages" {
            @for (path, name) in PAGES.iter().filter(|(path, _)| viewer.has_experts || *path != EXPERTS || here == EXPERTS) {
                a href=(path) aria-current=[(*path == here).then_some("page")] { (name) }
            }
        }
        @if !viewer.name.is_empty() {
            form class="logout" method="post" action="/ui/logout" {
                (csrf_field(viewer))
                button class="quiet" type="submit" title=(viewer.name) { "Log out" @if !viewer.name.ends_with(']') { " " (viewer.name) } }
            }
        }
    };
    plain_document(title, &navigation, main)
}

/// Writes a page with one sentence, for a visitor who may not see more.
pub(super) fn message_page(title: &str, text: &str) -> Markup {
    let main = html! { section class="narrow" { h1 { (title) } p { (text) } } };
    plain_document(title, &html! {}, &main)
}

/// Returns a page without navigation.
pub(super) fn plain_document(title: &str, navigation: &Markup, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · respool" }
                link rel="stylesheet" href="/ui/style.css";
                link rel="icon" type="image/svg+xml" href="/ui/icon.svg";
                script src="/ui/page.js" defer {}
            }
            body {
                a class="skip" href="#main" { "Skip to the content" }
                header { div class="top" { a class="brand" href="/" { "respool" } (navigation) } }
                main id="main" tabindex="-1" { (main) }
                footer { "respool " (env!("CARGO_PKG_VERSION")) " · times are UTC" }
            }
        }
    }
}

/// Returns the field that proves that a button is respool's own.
pub(super) fn csrf_field(viewer: &Viewer) -> Markup {
    html! { input type="hidden" name="csrf" value=(viewer.csrf); }
}

/// Returns a form of one button.
pub(super) fn button_form(
    viewer: &Viewer,
    action: &str,
    label: &str,
    about: &str,
    fields: &[(&str, &str)],
) -> Markup {
    html! {
        form class="inline" method="post" action=(action) {
            (csrf_field(viewer))
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button class="quiet" type="submit" aria-label={ (label) " " (about) } { (label) }
        }
    }
}

/// Returns a table that can be scrolled on a narrow screen, by keyboard too. `heads`: the name of each column
/// and its classes.
pub(super) fn scrolling_table(caption: &str, heads: &[(&str, &str)], rows: &Markup) -> Markup {
    html! {
        div class="scroll" role="region" aria-label=(caption) tabindex="0" {
            table {
                caption class="unseen" { (caption) }
                thead { tr { @for (name, classes) in heads { th scope="col" class=[(!classes.is_empty()).then_some(classes)] { (name) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Writes what a phone has no columns for below the first words of a row.
pub(super) fn phone_line(texts: &[&str]) -> Markup {
    let texts: Vec<&str> = texts.iter().copied().filter(|text| !text.is_empty()).collect();
    html! { @if !texts.is_empty() { span class="phone" { (texts.join(" · ")) } } }
}

/// Writes the links to the neighbours of a page of a list, which has at most `size` rows.
pub(super) fn page_links(query: &PageQuery, path: &str, size: usize, shown: usize, has_more: bool) -> Markup {
    let page = query.page();
    let first = (page - 1) * size + 1;
    let to = |page: usize| {
        query.link(path, &[("page", &if page == 1 { String::new() } else { page.to_string() })])
    };
    html! {
        nav class="paging" aria-label="Pages of the list" {
            @if page > 1 { a href=(to(page - 1)) rel="prev" { "Previous" } }
            span class="dim" { (format::format_count(first as u64)) " to " (format::format_count((first + shown - 1) as u64)) }
            @if has_more { a href=(to(page + 1)) rel="next" { "Next" } }
        }
    }
}

/// Writes the field in which a period is chosen; all of it when nothing is.
pub(super) fn period_choice(query: &PageQuery) -> Markup {
    html! {
        label { "Period" select name="period" {
            @for (value, name, _) in PERIODS.iter().rev() {
                option value=(if *value == "all" { "" } else { value }) selected[query.get("period") == *value] { (name) }
            }
        } }
    }
}

/// Writes the text that stands where there is nothing to show.
pub(super) fn empty_note(text: &str) -> Markup {
    html! { p class="empty" { (format::with_code(text)) } }
}

/// Returns a word with a colour, which also a reader of the screen gets as a word.
pub(super) fn colour_badge(kind: &str, text: &str) -> Markup {
    // On a phone there is no room for what most problems have in common.
    let own = text.strip_prefix("upstream ").filter(|own| *own != "error");
    let (common, own) = own.map_or(("", text), |own| ("upstream ", own));
    html! { span class={ "badge " (kind) } { @if !common.is_empty() { span class="wide" { (common) } } (own) } }
}
