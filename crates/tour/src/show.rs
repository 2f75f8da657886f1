//! Renders a scene as text: what the model said, what a client would have received, and what it receives.
//! Pure.

use serde_json::Value;

use crate::client::{Call, DemoReply};
use crate::scenes::{AGENT, SCENES, Scene};
use upstream::replay::SeenRequest;
use wire::visible::wrap_text;

/// The columns by which the rest of a wrapped line is moved to the right.
const MARGIN: usize = 2;
/// Longer texts are cut on the screen.
const WIDEST: usize = 78;

/// The first words of the tour.
pub const WELCOME: &str = "\
respool demo: seven things that happen between a client and
a model server.

In each scene the same client asks the same question twice:
directly, and through respool. The server's replies were
recorded from vLLM. No model, GPU or network is needed.
";

/// The command that brings those of [`explain_next`], where only the demo was built.
const INSTALL: &str = "    cargo install --path . --profile dist   # a longer build\n";

/// Says what to do after the tour.
pub fn explain_next(is_installed: bool) -> String {
    let install = if is_installed { "" } else { INSTALL };
    format!(
        "\
Now try your own server:

{install}    respool check --upstream http://YOUR-VLLM:8000
    respool serve --upstream http://YOUR-VLLM:8000

`check` says what works there, `serve` answers at
127.0.0.1:8003. `respool demo --serve` keeps running: point
a client at these recordings."
    )
}

/// One scene, as played.
pub struct Played {
    /// The reply without respool.
    pub direct: DemoReply,
    /// The reply through respool.
    pub through: DemoReply,
    /// The server's direct reply to the client.
    pub direct_answers: Vec<SeenRequest>,
    /// Its reply to respool.
    pub answers: Vec<SeenRequest>,
}

/// Returns the scene's text, for a terminal of this width.
pub fn render_scene(scene: &Scene, number: usize, played: &Played, width: usize) -> String {
    let heading = format!("━━ {number} of {} ━━ {} ", SCENES.len(), scene.title);
    let rule = "━".repeat(width.saturating_sub(heading.chars().count() + MARGIN));
    let said = if played.answers.is_empty() { &played.direct_answers } else { &played.answers };
    let slow = played.direct.first.as_millis() >= 1000;
    let mut lines = vec![format!("{heading}{rule}"), scene.story.to_owned(), String::new()];
    lines.push("  The server says:".to_owned());
    let one_of_several =
        |index: usize| if said.len() > 1 { format!("{}. ", index + 1) } else { String::new() };
    let each = said.iter().enumerate();
    lines.extend(
        each.map(|(index, answer)| format!("      {}{}", one_of_several(index), render_answer(answer))),
    );
    lines.push("  A client would get:".to_owned());
    lines.extend(render_reply(&played.direct, slow));
    lines.push(format!("    ✗ {}", scene.without).replace("✗ It works", "✓ It works"));
    lines.push("  Through respool it gets:".to_owned());
    lines.extend(render_reply(&played.through, slow));
    lines.push(format!("    ✓ {}", scene.with));
    lines.push(String::new());
    fit_width(&lines.join("\n"), width)
}

/// Returns the colour of a line of a scene: bold for its heading, red for what goes wrong, green for what
/// works.
pub fn colour_of(line: &str) -> &'static str {
    match line.trim_start() {
        line if line.starts_with('━') => "1",
        line if line.starts_with('✗') => "31",
        line if line.starts_with('✓') => "32",
        _ => "",
    }
}

/// Wraps the lines of a text between words; what follows stands two columns to the right.
fn fit_width(text: &str, width: usize) -> String {
    let fit_line = |line: &str| {
        let said = line.trim_start_matches(' ');
        let indent = line.len() - said.len();
        let below = format!("\n{:1$}", "", indent + MARGIN);
        let room = width.saturating_sub(indent + MARGIN).max(20);
        format!("{:indent$}{}", "", wrap_text(said, room).replace('\n', &below))
    };
    text.split('\n').map(fit_line).collect::<Vec<_>>().join("\n")
}

/// Says how to use a tour that stays up.
pub fn explain_serving(relay: &str, server: &str) -> String {
    let models: Vec<&str> = SCENES.iter().map(|scene| scene.model).collect();
    format!(
        "\
respool serves the recordings at {relay}/v1 until you press Ctrl-C.

    Models: {models}, and the agent {AGENT}
    Through respool:      curl {relay}/v1/chat/completions -H 'content-type: application/json' \\
                            -d '{{\"model\": \"{AGENT}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What does my note say?\"}}]}}'
    The recorded server:  {server}/v1
    In a browser:         {relay}/",
        models = models.join(", "),
    )
}

fn render_reply(got: &DemoReply, with_times: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if with_times {
        // The first event only names the role, and belongs to every stream.
        let kept = match got.heartbeats.saturating_sub(1) {
            0 => String::new(),
            count => format!(", then {count} signs of life"),
        };
        lines.push(format!("      first byte after {:.1} s{kept}", got.first.as_secs_f32()));
    }
    if !got.text.trim().is_empty() {
        lines.push(format!("      text   {}", cut_text(&flatten_text(&got.text))));
    }
    lines.extend(got.calls.iter().map(|call| format!("      call   {}", render_call(call))));
    lines.extend(got.error.iter().map(|error| format!("      error  {}", cut_text(error))));
    if lines.is_empty() {
        lines.push("      nothing: the stream ends empty".to_owned());
    }
    lines
}

fn render_call(call: &Call) -> String {
    format!("{} {}   (id {})", call.name, cut_text(&call.arguments), call.id)
}

/// Describes the server's reply, in either form.
fn render_answer(request: &SeenRequest) -> String {
    let body = String::from_utf8_lossy(&request.answer_body);
    let mut got = DemoReply::default();
    let whole: Option<Value> = serde_json::from_str(&body).ok();
    match whole {
        Some(whole) if whole["error"].is_object() => {
            got.error = whole["error"]["message"].as_str().map(str::to_owned);
        }
        Some(whole) => got.take_message(&whole["choices"][0]["message"]),
        None => {
            body.lines().filter_map(|line| line.strip_prefix("data: ")).for_each(|data| got.take_event(data));
        }
    }
    let mut parts = Vec::new();
    parts.extend(got.error.map(|error| format!("HTTP {}: {}", request.answer_status, cut_text(&error))));
    parts.extend(got.calls.iter().map(|call| format!("{} {}", call.name, cut_text(&call.arguments))));
    if parts.is_empty() || !got.text.trim().is_empty() {
        parts.push(cut_text(&flatten_text(&got.text)));
    }
    parts.join("; ")
}

/// Puts a text on one line.
fn flatten_text(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cut_text(text: &str) -> String {
    if text.chars().count() <= WIDEST {
        return text.to_owned();
    }
    text.chars().take(WIDEST).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_have_colours() {
        let found = ["━━ 1 of 7 ━━", "    ✗ no tool runs", "    ✓ It works", "      text   ✗"].map(colour_of);
        assert_eq!(found, ["1", "31", "32", ""]);
    }

    #[test]
    fn texts_fit_narrow_terminals() {
        let is_within = |text: &str, width: usize| text.lines().all(|line| line.chars().count() <= width);
        let next = explain_next(false);
        assert!(is_within(WELCOME, 60) && is_within(&next, 60) && next.contains("cargo install"), "{next}");
        assert!(!explain_next(true).contains("cargo install"));
        let fitting = |text: &str| is_within(text, 80);
        let scene = &SCENES[0];
        let call = || Call { name: "read".into(), arguments: "a word ".repeat(20), id: "c-1".into() };
        let reply = || DemoReply { calls: vec![call()], ..DemoReply::default() };
        let played = Played { direct: reply(), through: reply(), direct_answers: vec![], answers: vec![] };
        let text = render_scene(scene, 1, &played, 80);
        assert!(fitting(&text) && text.contains("\n        "), "{text}");
        assert!(text.lines().next().is_some_and(|heading| heading.ends_with('━')), "{text}");
    }
}
