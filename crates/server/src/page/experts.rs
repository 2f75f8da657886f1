//! The installed experts: whether each is ready, when it starts next, what waits for it or for a person, and
//! its last runs. What they work on is for operators, as it is on the other pages.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};

use super::layout::EXPERTS as PATH;
use super::query::PageQuery;
use super::response::page_response;
use super::session::Viewer;
use super::{drafts, format, layout, runs};
use crate::app::App;
use ::experts::{Expert, Experts, Invocation, describe_off, open_tasks};
use openexperts::{MODEL_PREFIX, Tier, Trigger, TriggerKind, is_agent_of};
use store::{EntryRow, EntryState, OpenCount, RunRow};
use wire::visible::make_visible;

/// The most tasks that are looked at, as under *Approvals*.
const MOST_TASKS: usize = 200;
/// The most runs among which an expert's are looked for.
const MOST_RUNS: usize = 1_000;
/// How many runs of an expert are listed, and how many of its invocations.
const LISTED: usize = 20;

pub(super) async fn show_experts(State(app): State<App>, viewer: Viewer) -> Response {
    let work = work_of_experts(&app, None).await;
    let last = newest_runs(&app, &viewer).await;
    let main = html! {
        h1 { "Experts" }
        div id="experts" data-refresh="5" {
            @match app.experts.as_deref().filter(|_| viewer.has_experts) {
                Some(experts) => {
                    @if viewer.name.is_empty() { (runs::operators_note(app.access.has_operators())) }
                    (expert_table(experts, &work, &last))
                }
                None => (layout::empty_note("No expert is installed. `respool expert new NAME` writes a package to begin with, and `respool expert install SOURCE` installs one.")),
            }
        }
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, PATH, "Experts", &main))
}

/// How much open work an expert has.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// The invocations that are worked on.
    claimed: u64,
    /// Those that wait for their turn.
    waiting: u64,
    /// Those that wait for an answer to a request for approval.
    held: u64,
    /// The tasks and drafts that wait for a person.
    left_to_person: u64,
}

impl Work {
    fn needs_person(self) -> u64 {
        self.held + self.left_to_person
    }

    fn open(self) -> u64 {
        self.claimed + self.waiting + self.held
    }
}

/// Returns the open work of each expert, or of this `expert` alone, by its name.
async fn work_of_experts(app: &App, expert: Option<&str>) -> BTreeMap<String, Work> {
    let mut work: BTreeMap<String, Work> = BTreeMap::new();
    let Some(store) = app.agents.store().filter(|_| app.experts.is_some()) else { return work };
    for OpenCount { queue, state, count } in store.open_counts().await.unwrap_or_default() {
        let of_expert = work.entry(queue).or_default();
        match state {
            EntryState::Claimed => of_expert.claimed = count,
            EntryState::Held => of_expert.held = count,
            _ => of_expert.waiting = count,
        }
    }
    let tasks = open_tasks(store, expert, MOST_TASKS).await.unwrap_or_default();
    let drafts = drafts::open_drafts(store, expert).await;
    let needing =
        tasks.into_iter().map(|task| task.row.queue).chain(drafts.into_iter().map(|row| row.message.expert));
    for name in needing {
        work.entry(name).or_default().left_to_person += 1;
    }
    work
}

/// Returns the first invocations of an expert that have not ended.
async fn open_entries(app: &App, expert: &str) -> Vec<EntryRow> {
    let mut rows = Vec::new();
    let Some(store) = app.agents.store() else { return rows };
    for state in [EntryState::Claimed, EntryState::Held, EntryState::Waiting] {
        let left = LISTED.saturating_sub(rows.len());
        rows.extend(store.entries(Some(expert), state, left).await.unwrap_or_default());
    }
    rows
}

/// Returns the newest runs that the viewer may see.
async fn newest_runs(app: &App, viewer: &Viewer) -> Vec<RunRow> {
    let Some(store) = app.agents.store() else { return Vec::new() };
    store.newest(runs::visible_runs(viewer), MOST_RUNS).await.unwrap_or_default()
}

fn expert_table(experts: &Experts, work: &BTreeMap<String, Work>, last: &[RunRow]) -> Markup {
    let heads = [
        ("Expert", ""),
        ("State", ""),
        ("Next start (UTC)", "wide"),
        ("At work", "number wide"),
        ("Waiting", "number wide"),
        ("Needs you", "number"),
        ("Last run", ""),
    ];
    let (now, problems) = (clock::now(), experts.load_problems());
    let rows = html! {
        @for expert in experts.iter() {
            @let name = expert.name();
            @let run = last.iter().find(|run| is_agent_of(&run.agent, name));
            (expert_row(experts, &expert, work.get(name).copied().unwrap_or_default(), run, now))
        }
        @for (folder, why) in &problems {
            @if experts.iter().all(|expert| expert.folder() != folder) { (unloaded_row(folder, why)) }
        }
    };
    layout::scrolling_table("Experts", &heads, &rows)
}

fn expert_row(experts: &Experts, expert: &Expert, work: Work, last: Option<&RunRow>, now: u64) -> Markup {
    let manifest = &expert.package.manifest;
    let mut next = next_start(expert, now);
    if experts.readiness.why_not_ready(expert.name()).is_some() {
        next.push_str(" once it is ready");
    }
    let needs_person = format::format_count(work.needs_person());
    html! {
        tr {
            th scope="row" { a href={ (PATH) "/" (expert.name()) } { (expert.name()) }
                div class="dim wide" { (make_visible(&manifest.description.value)) }
                (layout::phone_line(&[&next])) }
            td class="words" { (state_of(experts, expert)) }
            td class="wide" { (next) }
            td class="number wide" { (format::format_count(work.claimed)) }
            td class="number wide" { (format::format_count(work.waiting)) }
            td class="number" { @if work.needs_person() > 0 { a href="/ui/approvals" { (needs_person) } } @else { (needs_person) } }
            td { @if let Some(run) = last { a href={ (runs::PATH) "/" (run.id) } { (format::format_age(run.created, now)) } " " (runs::status_badge(run.status)) } @else { "–" } }
        }
    }
}

fn unloaded_row(folder: &str, why: &str) -> Markup {
    html! {
        tr {
            th scope="row" { (make_visible(folder)) }
            td class="words" colspan="6" { (layout::colour_badge("bad", "does not load")) " " (format::with_code(&make_visible(why)))
                ". " code { "respool expert validate " (make_visible(folder)) } " shows all of its faults." }
        }
    }
}

/// Says whether work for an expert can begin, and why not.
fn state_of(experts: &Experts, expert: &Expert) -> Markup {
    let name = expert.name();
    html! {
        @if let Some(why) = experts.readiness.why_not_ready(name) {
            (layout::colour_badge("bad", "not ready")) " " (format::with_code(&make_visible(&why)))
        } @else if experts.is_starting(name) {
            (layout::colour_badge("busy", "starting")) " its servers have not answered yet"
        } @else { (layout::colour_badge("good", "ready")) }
        @if let Some(why) = experts.load_problems().get(expert.folder()) {
            " Its changed package does not load, so version " (make_visible(&expert.package.manifest.version.value)) " stays in service: "
            (format::with_code(&make_visible(why)))
        }
    }
}

/// Says when an expert starts next, by its clocks or by what else starts it.
fn next_start(expert: &Expert, now: u64) -> String {
    if let Some((at, trigger)) = expert.next_start(now) {
        return format!("{}, {}", format::format_short_time(at, now), make_visible(trigger));
    }
    let has_triggers = !expert.package.manifest.triggers.items.is_empty();
    if has_triggers { "at an event" } else { "when it is asked" }.to_owned()
}

pub(super) async fn show_expert(
    State(app): State<App>,
    Path(name): Path<String>,
    viewer: Viewer,
) -> Response {
    let found = app.experts.as_deref().and_then(|experts| Some((experts, experts.get(&name)?)));
    let Some((experts, expert)) = found else {
        let main =
            html! { h1 { "Expert" } p { "No expert " code { (make_visible(&name)) } " is installed." } };
        return page_response(StatusCode::NOT_FOUND, layout::page_layout(&viewer, PATH, "Expert", &main));
    };
    let work = work_of_experts(&app, Some(&name)).await.remove(&name).unwrap_or_default();
    let open = open_entries(&app, &name).await;
    let mut last = newest_runs(&app, &viewer).await;
    let no_run = if last.len() < MOST_RUNS {
        "No run of this expert is kept."
    } else {
        "None of the last 1,000 runs is of this expert."
    };
    last.retain(|run| is_agent_of(&run.agent, &name));
    last.truncate(LISTED);
    let listed = runs::listed_runs(&app, last).await;
    let all = PageQuery::default().link(runs::PATH, &[("agent", &format!("{MODEL_PREFIX}{name}"))]);
    let main = html! {
        h1 { (name) }
        p { (make_visible(&expert.package.manifest.description.value)) }
        div id="expert" data-refresh="5" {
            p { (state_of(experts, &expert)) }
            (expert_facts(experts, &expert, work))
            (trigger_section(&expert))
            (tool_section(&expert))
            @if !viewer.name.is_empty() { (work_section(work, &open)) }
            section { h2 { "Last runs" }
                @if viewer.name.is_empty() { (runs::operators_note(app.access.has_operators())) }
                @if listed.is_empty() { (layout::empty_note(no_run)) }
                @else { (runs::run_table(&listed)) p { a href=(all) { "All of its runs" } } } }
        }
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, PATH, &name, &main))
}

fn expert_facts(experts: &Experts, expert: &Expert, work: Work) -> Markup {
    let package = &expert.package;
    let functions = package.functions.items.iter().map(|function| function.name.value.as_str());
    let functions = functions.collect::<Vec<_>>().join(", ");
    html! {
        dl class="facts" {
            dt { "Version" } dd { (make_visible(&package.manifest.version.value)) }
            dt { "Model" } dd { (make_visible(&experts.model_access(expert.name()).model_id)) }
            @if !functions.is_empty() { dt { "Functions" } dd { (make_visible(&functions)) } }
            dt { "Needs you" } dd { @if work.needs_person() > 0 { a href="/ui/approvals" { (format::format_count(work.needs_person())) " under Approvals" } } @else { "nothing" } }
        }
    }
}

fn trigger_section(expert: &Expert) -> Markup {
    let (triggers, now) = (&expert.package.manifest.triggers.items, clock::now());
    let rows = html! {
        @for trigger in triggers {
            tr {
                th scope="row" { (make_visible(&trigger.name.value)) }
                td class="wide" { (trigger.kind.map_or("–", TriggerKind::as_str)) }
                td { (make_visible(&trigger.process.value)) }
                td { @if let Some(why) = describe_off(trigger, &expert.bindings) { (layout::colour_badge("middling", "off")) " " (format::with_code(&make_visible(&why))) }
                    @else { (start_of(expert, trigger, now)) } }
            }
        }
    };
    let heads = [("Trigger", ""), ("Kind", "wide"), ("Process", ""), ("Starts", "")];
    html! {
        section { h2 { "Triggers" }
            @if triggers.is_empty() { (layout::empty_note("Nothing starts it but a question, or `respool expert run`.")) }
            @else { (layout::scrolling_table("Triggers", &heads, &rows)) } }
    }
}

/// Says when a trigger starts its process, or where its events arrive.
fn start_of(expert: &Expert, trigger: &Trigger, now: u64) -> Markup {
    let next = trigger.clock.schedule().and_then(Result::ok).and_then(|times| times.next_after(now));
    let expr = trigger.clock.expr.as_ref().map(|expr| make_visible(&expr.value)).unwrap_or_default();
    let zone = trigger.clock.zone.as_ref().map_or_else(|| "UTC".to_owned(), |zone| make_visible(&zone.value));
    let name = make_visible(&trigger.name.value);
    if trigger.kind == Some(TriggerKind::Cron) {
        html! {
            @match next { Some(next) => (format::format_time(next)), None => "never" } " (" code { (expr) } " in " (zone) ")"
        }
    } else {
        html! { code { "POST /hooks/" (expert.name()) "/" (name) } }
    }
}

/// Lists the tools, what they are bound to, and which of their operations run alone.
fn tool_section(expert: &Expert) -> Markup {
    let tiers = expert.tiers();
    let of_tool = |tool: &str, tier: Tier| {
        let operations =
            tiers.operations(tier).iter().filter_map(|title| title.strip_prefix(tool)?.strip_prefix('.'));
        make_visible(&operations.collect::<Vec<_>>().join(", "))
    };
    let bound: BTreeMap<&str, &str> = expert.bound_tools().into_iter().collect();
    let tools = &expert.package.manifest.tools.items;
    let rows = html! {
        @for tool in tools.iter().map(|tool| tool.value.as_str()) {
            tr {
                th scope="row" { (make_visible(tool)) }
                td { @match bound.get(tool) { Some(target) => (make_visible(target)), None => (layout::colour_badge("bad", "not bound")) } }
                td { (of_tool(tool, Tier::Auto)) }
                td { (of_tool(tool, Tier::Confirm)) }
                td { (of_tool(tool, Tier::Manual)) }
            }
        }
    };
    let heads = [
        ("Tool", ""),
        ("Bound to", ""),
        ("Runs without asking", ""),
        ("Asks first", ""),
        ("Drafts only", ""),
    ];
    html! { @if !tools.is_empty() { section { h2 { "Tools" } (layout::scrolling_table("Tools", &heads, &rows)) } } }
}

/// Lists the invocations that have not ended.
fn work_section(work: Work, open: &[EntryRow]) -> Markup {
    let now = clock::now();
    let process = |row: &EntryRow| {
        Invocation::read(&row.payload).map(|invocation| make_visible(&invocation.process)).unwrap_or_default()
    };
    let rows = html! {
        @for row in open {
            tr {
                td class="time" { (format::format_short_time(row.accepted, now)) }
                td { (process(row)) @if let Some(run) = &row.run { " " a href={ (runs::PATH) "/" (run) } { "its run" } } }
                td { @match row.state {
                    EntryState::Claimed => (layout::colour_badge("busy", "at work")),
                    EntryState::Held => { (layout::colour_badge("middling", "waits for you")) " " a href="/ui/approvals" { "decide" } }
                    _ => (layout::colour_badge("middling", "waits")),
                } }
                td class="number" { (row.attempt) }
                td class="wide" { (format::with_code(&make_visible(row.note.as_deref().unwrap_or_default()))) }
            }
        }
    };
    let heads =
        [("Accepted (UTC)", ""), ("Process", ""), ("State", ""), ("Attempts", "number"), ("Note", "wide")];
    html! {
        section { h2 { "Open work" }
            @if open.is_empty() { (layout::empty_note("Nothing waits, and nothing is worked on.")) }
            @else {
                (layout::scrolling_table("Open work", &heads, &rows))
                @if work.open() > open.len() as u64 { p { "and " (format::format_count(work.open() - open.len() as u64)) " more: " code { "respool expert queue" } } }
            } }
    }
}
