//! The files of the service: systemd's unit, launchd's property list, and the environment file. Pure.

use std::collections::BTreeMap;
use std::path::Path;

/// The unit that `deploy/README.md` describes.
const UNIT: &str = include_str!("../../../deploy/respool.service");
const ENVIRONMENT: &str = include_str!("../../../deploy/respool.env");

/// The placeholder for the program in the unit.
const PROGRAM: &str = "%h/.local/bin/respool";

/// The variable that sets the address of the first upstream.
pub const UPSTREAM: &str = "RESPOOL__UPSTREAM__0__URL";
/// The variable that sets its key.
pub const KEY: &str = "RESPOOL__UPSTREAM__0__API_KEY";
/// The variable that sets where respool listens.
pub const LISTEN: &str = "RESPOOL__LISTEN";

/// Returns the systemd unit for this program.
pub(crate) fn unit_text(program: &Path) -> String {
    // systemd splits at spaces and expands `%`, `$` and backslashes.
    let path = program
        .to_string_lossy()
        .replace('\\', "\\\\")
        .replace('%', "%%")
        .replace('$', "$$")
        .replace('"', "\\\"");
    let path = if path.contains(char::is_whitespace) { format!("\"{path}\"") } else { path };
    UNIT.replacen(PROGRAM, &path, 1)
}

/// Returns the assignments of a unit that hold for whatever program it starts.
pub(crate) fn rules_of(unit: &str, home: &Path) -> Vec<String> {
    const OTHERS: [&str; 7] = ["Type", "Exec", "Restart", "Kill", "Timeout", "Standard", "Syslog"];
    let lines = unit.lines().skip_while(|line| line.trim() != "[Service]").skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let is_rule = |line: &&str| {
        line.starts_with(|first: char| first.is_ascii_uppercase())
            && !OTHERS.iter().any(|other| line.starts_with(other))
    };
    lines.filter(is_rule).map(|line| line.replace("%h", &home.to_string_lossy())).collect()
}

/// Returns launchd's property list for this program. launchd does not read environment files, so a shell
/// does.
pub(crate) fn property_list(program: &Path, home: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"));
    let environment = quoted(&home.join(".config/respool/respool.env"));
    let command = escape_xml(&format!("set -a; . {environment}; exec {} serve", quoted(program)));
    let log = escape_xml(&home.join("Library/Logs/respool.log").to_string_lossy());
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>org.respool.respool</string>
  <key>ProgramArguments</key>
  <array><string>/bin/sh</string><string>-c</string><string>{command}</string></array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>ThrottleInterval</key><integer>10</integer>
  <key>ExitTimeOut</key><integer>40</integer>
  <key>Umask</key><integer>63</integer>
  <key>SoftResourceLimits</key><dict><key>NumberOfFiles</key><integer>65536</integer></dict>
  <key>StandardOutPath</key><string>{log}</string>
  <key>StandardErrorPath</key><string>{log}</string>
</dict>
</plist>
"#
    )
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the environment file with the requested values (the upstream's address and its key, quoted, and
/// where respool listens); what a person wrote into it stays.
pub fn environment_text(
    present: Option<&str>,
    upstream: Option<&str>,
    key: Option<&str>,
    listen: Option<&str>,
) -> String {
    let mut text = present.map_or_else(environment_template, str::to_owned);
    for (name, value) in [(UPSTREAM, upstream), (KEY, key), (LISTEN, listen)] {
        if let Some(value) = value {
            text = set_value(&text, name, value);
        }
    }
    text
}

/// Returns the template, without an address that was not requested.
fn environment_template() -> String {
    let lines = ENVIRONMENT.lines().map(|line| {
        let is_setting = line.starts_with(UPSTREAM);
        format!("{}{line}\n", if is_setting { "#" } else { "" })
    });
    lines.collect()
}

fn set_value(text: &str, name: &str, value: &str) -> String {
    let line = format!("{name}={value}");
    let is_it = |line: &str| {
        line.trim_start_matches('#').strip_prefix(name).is_some_and(|rest| rest.starts_with('='))
    };
    let set = text.lines().position(|line| is_it(line) && !line.starts_with('#'));
    let place = set.or_else(|| text.lines().position(is_it));
    let mut lines: Vec<&str> = text.lines().collect();
    match place.and_then(|place| lines.get_mut(place)) {
        Some(present) => *present = &line,
        None => lines.push(&line),
    }
    lines.join("\n") + "\n"
}

/// Returns a value as systemd and a shell read it in the environment file; `None` if one of them cannot.
pub fn quote_value(value: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.~+/=:@-".contains(c);
    match value {
        value if value.chars().all(is_plain) => Some(value.to_owned()),
        value if value.contains(|c: char| c == '\'' || c.is_control()) => None,
        value => Some(format!("'{value}'")),
    }
}

/// Returns the variables of an environment file, without their quotation marks.
pub fn variables(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let unquoted = |value: &str| {
        let inside = |mark| value.strip_prefix(mark).and_then(|rest: &str| rest.strip_suffix(mark));
        inside('\'').or_else(|| inside('"')).unwrap_or(value).to_owned()
    };
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), unquoted(value.trim()))).collect()
}

/// Returns the value of a name in an environment file.
pub fn value_of(text: &str, name: &str) -> Option<String> {
    let set = |line: &str| Some(line.trim().strip_prefix(name)?.strip_prefix('=')?.trim().to_owned());
    text.lines().rev().find_map(set).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_deploys_with_this_program() {
        assert_eq!(unit_text(Path::new(PROGRAM)).replace("%%h", "%h"), UNIT, "nothing else changes");
        let check = |path: &str, expected: &str| {
            let unit = unit_text(Path::new(path));
            assert!(unit.contains(&format!("\nExecStart={expected} serve\n")), "{path}: {unit}");
        };
        check("/usr/bin/respool", "/usr/bin/respool");
        check("/home/a b/100%/respool", "\"/home/a b/100%%/respool\"");
        check("/x/$y", "/x/$$y");
    }

    #[test]
    fn variables_are_read_as_systemd_reads_them() {
        let text = format!("# A=1\n A = b c \nK='k $y'\nQ=\"x\"\n{UPSTREAM}=http://gpu:8000/?a=b\nnothing\n");
        let pairs = [("A", "b c"), ("K", "k $y"), ("Q", "x"), (UPSTREAM, "http://gpu:8000/?a=b")];
        assert_eq!(variables(&text), pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn rules_of_the_unit_hold_for_other_programs() {
        let rules = rules_of(UNIT, Path::new("/home/me"));
        let has = |rule: &str| rules.iter().any(|known| known.starts_with(rule));
        assert!(has("RestrictNamespaces=") && has("SystemCallFilter=~@privileged") && has("UMask="));
        assert!(has("EnvironmentFile=-/home/me/.config/respool/respool.env"));
        for other in ["Restart", "ExecStart", "Type", "WantedBy", "Description", "#"] {
            assert!(!has(other), "{other}");
        }
    }

    #[test]
    fn the_property_list_of_macos() {
        insta::assert_snapshot!(property_list(Path::new("/Users/o'neil/bin/respool"), Path::new("/Users/o'neil")), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
        <plist version="1.0">
        <dict>
          <key>Label</key><string>org.respool.respool</string>
          <key>ProgramArguments</key>
          <array><string>/bin/sh</string><string>-c</string><string>set -a; . '/Users/o'\''neil/.config/respool/respool.env'; exec '/Users/o'\''neil/bin/respool' serve</string></array>
          <key>RunAtLoad</key><true/>
          <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
          <key>ThrottleInterval</key><integer>10</integer>
          <key>ExitTimeOut</key><integer>40</integer>
          <key>Umask</key><integer>63</integer>
          <key>SoftResourceLimits</key><dict><key>NumberOfFiles</key><integer>65536</integer></dict>
          <key>StandardOutPath</key><string>/Users/o'neil/Library/Logs/respool.log</string>
          <key>StandardErrorPath</key><string>/Users/o'neil/Library/Logs/respool.log</string>
        </dict>
        </plist>
        "#);
    }

    #[test]
    fn the_environment_file_keeps_other_lines() {
        let fresh = environment_text(None, Some("http://gpu:8000"), None, None);
        assert_eq!(value_of(&fresh, UPSTREAM).as_deref(), Some("http://gpu:8000"));
        assert_eq!(value_of(&fresh, LISTEN), None);
        assert_eq!(
            value_of(&environment_text(None, None, None, None), UPSTREAM),
            None,
            "respool.toml may hold the upstreams"
        );
        let grown = "RESPOOL__UPSTREAM__0__URL=http://old\n# mine\nRESPOOL__UPSTREAM__0__API_KEY=k\n";
        assert_eq!(
            environment_text(Some(grown), Some("http://new"), None, Some("127.0.0.1:9000")),
            "RESPOOL__UPSTREAM__0__URL=http://new\n# mine\nRESPOOL__UPSTREAM__0__API_KEY=k\nRESPOOL__LISTEN=127.0.0.1:9000\n"
        );
        assert_eq!(environment_text(Some(grown), None, None, None), grown);
    }

    #[test]
    fn a_key_is_written_quoted() {
        let with_key = |key: &str| environment_text(None, None, quote_value(key).as_deref(), None);
        assert!(with_key("sk-a_b.C=").contains("\nRESPOOL__UPSTREAM__0__API_KEY=sk-a_b.C=\n"));
        assert!(with_key("a $b\"").contains("\nRESPOOL__UPSTREAM__0__API_KEY='a $b\"'\n"));
        assert_eq!([quote_value("it's"), quote_value("a\nb")], [None, None]);
    }
}
