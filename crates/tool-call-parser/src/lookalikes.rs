//! Forms that few models write, each with prose that resembles it and stays text.

use std::sync::Arc;

use crate::behaviour::{TOOLS, calls, check, run_with, text};
use crate::event::{Dropped, Event, Note, Parsed};
use crate::{End, Engine, Field, NativeCall, Options, Tools};

const READ: &str = r#"read{"path":"a"}"#;

fn native(name: &str, arguments: &str) -> Parsed {
    let mut engine = Engine::new(Arc::new(Tools::from_json(TOOLS).unwrap()), Options::default());
    let mut events: Vec<Event> = Vec::new();
    let call = NativeCall { id: None, name: name.to_owned(), arguments: arguments.to_owned() };
    engine.push_native(call, &mut events);
    engine.finish(End::default(), &mut events);
    events.into_iter().collect()
}

#[test]
fn xml_in_a_harmony_body_is_read() {
    let beam = |body: &str| {
        format!("<|start|>assistant to=exec<|channel|>analysis <|constrain|>xml<|message|>{body}<|end|>")
    };
    let exec = r#"exec{"command":"ls -la"}"#;
    check(&beam("<rfl:parameter name=\"command\">\nls -la\n</rfl:parameter>"), exec, "");
    check(&beam("<parameter name=\"command\">ls -la</parameter>"), exec, "");
    check(&beam("<command>ls -la</command>"), exec, "");
    check(
        &beam("<command>\nls -la\n</command>\n<background>true</background>"),
        r#"exec{"command":"ls -la","background":true}"#,
        "",
    );
    // A closing tag is missing where the next parameter begins.
    check(
        &beam(
            "<rfl:parameter name=\"command\">\nls -la\n<rfl:parameter name=\"background\">\ntrue\n</rfl:parameter>",
        ),
        r#"exec{"command":"ls -la","background":true}"#,
        "",
    );
    check(
        &beam("<rfl:parameter name=\"command\">\n echo '<b>'\n\n</rfl:parameter>"),
        r#"exec{"command":" echo '<b>'\n"}"#,
        "",
    );
    // The chat template wrote the first header's beginning.
    check(
        " to=exec<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"command\">\nls -la\n</rfl:parameter><|call|>",
        exec,
        "",
    );
    check("<|channel|>commentary to=now<|message|><|call|>", "now{}", "");
    // Beam's reasoning, two calls and an answer.
    let turn = run_with(
        Options::default(),
        End::default(),
        Field::Content,
        &format!(
            "<|channel|>analysis<|message|>Hm.<|end|>{}{}",
            beam("<command>ls -la</command>"),
            beam("<command>ls -la</command>").replace("<|end|>", "<|call|>")
        ),
    );
    assert_eq!((turn.reasoning.as_str(), calls(&turn)), ("Hm.", format!("{exec};{exec}")));
}

#[test]
fn markup_is_never_wrapped_as_one_argument() {
    for body in [
        "<rfl:parameter name=\"command\">\nls -la\n",
        "<rfl:parameter name=\"command\">\nls\n</rfl:parameter> and then",
        "<cmd>ls -la</cmd>",
        "<command>ls -la</command> please",
        "<command>ls",
        "<!-- ls -->",
        "<|constrain|>ls -la",
        "<",
    ] {
        let reply =
            format!("<|start|>assistant to=exec<|channel|>analysis <|constrain|>xml<|message|>{body}<|end|>");
        let turn = run_with(Options::default(), End::default(), Field::Content, &reply);
        assert_eq!(calls(&turn), "", "{body}");
        let note = Note::LeftAsText { name: "exec".into(), why: Dropped::Unreadable };
        assert!(turn.notes.contains(&note), "{body}: {:?}", turn.notes);
        let turn = native("exec", body);
        if body.starts_with("<|") || body == "<" {
            continue;
        }
        assert_eq!(calls(&turn), "", "{body}");
        assert!(
            matches!(&turn.notes[..], [Note::Dropped { why: Dropped::Unreadable, .. }]),
            "{body}: {:?}",
            turn.notes
        );
    }
    assert_eq!(calls(&native("exec", "<command>ls</command>")), r#"exec{"command":"ls"}"#);
    assert_eq!(calls(&native("read", "<rfl:parameter name=\"path\">\na\n</rfl:parameter>")), READ);
    text("Beam writes <rfl:parameter name=\"path\"> around a value.");
    text("A message to=read of type xml holds <path>a</path>.");
}

#[test]
fn functionary_messages_and_prompts_of_python() {
    check(">>>read\n{\"path\":\"a\"}", READ, "");
    check(
        ">>>all\nLet me look.>>>read\n{\"path\":\"a\"}>>>now\n{}",
        r#"read{"path":"a"};now{}"#,
        "Let me look.",
    );
    check("read\n{\"path\":\"a\"}\n>>>now\n{}<|eot_id|>", r#"read{"path":"a"};now{}"#, "");
    text(">>> read\n{\"path\": \"a\"}");
    text("Then:\n>>>read\nnothing");
    text("1 >>>all\nbits");
    text(">>>paint\n{\"path\":\"a\"}");
    text("> quoted\n>>> print(1)\n1");
    text("a >>> b >>>");
}

#[test]
fn mcp_tags_and_prose_about_them() {
    let call = |server: &str, tool: &str| {
        format!(
            "<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n<arguments>\n{{\"path\": \"a\"}}\n</arguments>\n</use_mcp_tool>"
        )
    };
    check(&format!("I read.\n\n{}", call("files", "read")), r#"read{"path": "a"}"#, "I read.");
    let web = call("web", "search").replace("path", "query");
    check(&web, r#"web_search{"query": "a"}"#, "");
    text(&call("web", "paint"));
    text("<use_mcp_tool> takes <server_name> and <tool_name>read</tool_name>.");
    text("Write `<use_mcp_tool>` first.");
    text("<use_mcp_tool>\n<server_name>web</server_name> and so on");
}

#[test]
fn namespaces_of_tags() {
    let call = |space: &str| {
        format!(
            "<{space}:invoke name=\"read\">\n<{space}:parameter name=\"path\">a</{space}:parameter>\n</{space}:invoke>"
        )
    };
    for space in ["ns", "claude.v2", "mini-max"] {
        check(&call(space), READ, "");
        let block =
            format!("<{space}:function_calls>\n{}\n{}\n</{space}:function_calls>", call(space), call(space));
        check(&block, &format!("{READ};{READ}"), "");
        text(&call(space).replace("read", "paint"));
    }
    text("<xsl:template name=\"read\"><xsl:param name=\"path\"/></xsl:template>");
    text("<svg:function_calls> is no element, nor is <x:invoke name=>.");
    text("if a <b:c then <d:invoke");
}

#[test]
fn arrows_between_tool_call_marks() {
    let exec = r#"exec{"command":"ls -la"}"#;
    check("[TOOL_CALL]\n{tool => \"exec\", args => {\n  --command \"ls -la\"\n}}\n[/TOOL_CALL]", exec, "");
    check("Now.\n[TOOL_CALL]{tool => \"exec\" args => { --command: \"ls -la\" }}[/TOOL_CALL]", exec, "Now.");
    check("[TOOL_CALL]{tool => \"exec\", args => {\"command\":\"ls -la\"}}[/TOOL_CALL]", exec, "");
    check("[TOOL_CALL]{tool => \"now\", args => {}}[/TOOL_CALL]", "now{}", "");
    check(
        "[TOOL_CALL]\n{tool => \"exec\", args => {\n  --command \"echo \"a\"\nls\"\n  --background true\n}}\n[/TOOL_CALL]",
        "exec{\"command\":\"echo \\\"a\\\"\\nls\",\"background\":true}",
        "",
    );
    check("[TOOL_CALL]\n{\"name\": \"read\", \"arguments\": {\"path\":\"a\"}}\n[/TOOL_CALL]", READ, "");
    text("[TOOL_CALL] begins a call and [/TOOL_CALL] ends it.");
    text("[TOOL_CALL]{tool => \"paint\", args => {--colour \"red\"}}[/TOOL_CALL]");
    text("In Perl: {tool => \"exec\", args => {}}");
}

#[test]
fn lists_and_names_in_tags() {
    check(
        "<function_calls>[{\"tool_name\": \"read\", \"tool_args\": {\"path\":\"a\"}}]</function_calls>",
        READ,
        "",
    );
    check("<function_calls>\n[read(path=\"a\")]\n</function_calls>", READ, "");
    check("<tool_call name=\"read\">{\"path\":\"a\"}</tool_call>", READ, "");
    check("<function_call name=\"read\">\n{\"path\":\"a\"}\n</function_call>\nDone.", READ, "Done.");
    check("<tool_call name=\"read\"><parameter name=\"path\">a</parameter></tool_call>", READ, "");
    text("<function_calls>[1, 2]</function_calls>");
    text("<tool_call name=\"paint\">{\"path\":\"a\"}</tool_call>");
    text("The tag <tool_call name=\"read\"> needs a body.");
}

#[test]
fn addresses_of_tools() {
    check("nc://read {\"path\":\"a\"}", READ, "");
    check("I read it:\nnc://read{\"path\":\"a\"}\nnc://now {}", r#"read{"path":"a"};now{}"#, "I read it:");
    text("nc://read {\"path\":\"a\"} reads a file.");
    text("nc://example.org/read {\"path\":\"a\"}");
    text("See nc://read {\"path\":\"a\"}");
}

#[test]
fn tools_as_tags() {
    check("I read it.\n\n<read>\n<path>a</path>\n</read>", READ, "I read it.");
    check("<read>\n<path>\na\n</path>\n<limit>3</limit>\n</read>", r#"read{"path":"a","limit":3}"#, "");
    check(
        "<write><path>a</path><content>\n<write></write>\n</content></write>",
        r#"write{"path":"a","content":"<write></write>"}"#,
        "",
    );
    check("<now></now>", "now{}", "");
    text("<read>\n<path>a</path>\n</read>\nreads a file.");
    text("<read><file>a</file></read>");
    text("<read>the book</read>");
    text("<paint><path>a</path></paint>");
    text("Use <read><path>a</path></read> for this.");
    text("```xml\n<read>\n<path>a</path>\n</read>\n```");
    text("<read>");
    let turn =
        run_with(Options::default(), End { cut: true }, Field::Content, "<write><path>a</path><content>half");
    assert_eq!((calls(&turn).as_str(), turn.content.as_str()), ("", ""));
    assert!(matches!(&turn.notes[..], [Note::Dropped { why: Dropped::Truncated, .. }]), "{:?}", turn.notes);
}

#[test]
fn spaces_as_the_tokenizer_writes_them() {
    check("<functionĠname=\"read\"><paramĠname=\"path\">a</param></function>", READ, "");
    text("The tokenizer writes <functionĠname for a space.");
}

#[test]
fn frames_of_answers_and_of_reasoning() {
    check(
        "I think.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}]</tool_calls>\n[END FINAL RESPONSE]",
        READ,
        "I think.",
    );
    check("[BEGIN FINAL RESPONSE]\nIt is late.\n[END FINAL RESPONSE]\n<|end|>", "", "It is late.");
    text("Apriel writes \"[BEGIN FINAL RESPONSE]\" before its answer.");
    let apertus = "<|inner_prefix|>Hm.<|tools_prefix|>[{\"read\": {\"path\":\"a\"}}]<|tools_suffix|>";
    let turn = run_with(Options::default(), End::default(), Field::Content, apertus);
    assert_eq!((turn.reasoning.as_str(), calls(&turn).as_str(), turn.content.as_str()), ("Hm.", READ, ""));
    let turn = run_with(
        Options::default(),
        End::default(),
        Field::Content,
        "<|inner_prefix|>Hm.<|inner_suffix|>It is late.",
    );
    assert_eq!((turn.reasoning.as_str(), turn.content.as_str()), ("Hm.", "It is late."));
}

#[test]
fn headings_of_calls() {
    let call = "{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}";
    check(&format!("I look.\n\n**Tool Call:**\n```json\n{call}\n```"), READ, "I look.");
    check(&format!("**Tool Call:**\n{call}"), READ, "");
    text(&format!("**Tool Call:**\n```json\n{call}\n```\n\n**Response:**\nnothing"));
    text("**Tool Call:** `read`");
    text("**Tool Call:**\n\n- read\n- now");
    text("**Tool Call:**\n```json\n{\"name\":\"Bob\"}\n```");
}

#[test]
fn a_call_at_the_end_of_reasoning_leaves_it() {
    let call = "<|open|>tools<|sep|><|open|>call tool=\"read\" index=\"1\"<|sep|><|open|>argument key=\"path\" type=\"string\"<|sep|>a<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";
    let turn = run_with(Options::default(), End::default(), Field::Reasoning, &format!("I read it. {call}"));
    assert_eq!((calls(&turn).as_str(), turn.reasoning.trim()), (READ, "I read it."));
    let kimi = "Hm. <|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{\"path\":\"a\"}<|tool_call_end|><|tool_calls_section_end|>";
    let turn = run_with(Options::default(), End::default(), Field::Reasoning, kimi);
    assert_eq!((calls(&turn).as_str(), turn.reasoning.trim()), (READ, "Hm."));
    let turn =
        run_with(Options::default(), End::default(), Field::Reasoning, &format!("{call} would read it."));
    assert_eq!(turn.reasoning, format!("{call} would read it."));
    // Without a call all of it stays reasoning.
    for reasoning in ["Say <|tool_call_begin|> first.", "The mark <|open|>tools<|sep|> begins calls, <|op"] {
        let turn = run_with(Options::default(), End::default(), Field::Reasoning, reasoning);
        assert_eq!((calls(&turn).as_str(), turn.reasoning.as_str()), ("", reasoning));
    }
}
