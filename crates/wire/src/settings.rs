//! Declares each key of the configuration once. From one declaration, [`settings!`](crate::settings!) makes
//! the field with its documentation, its default, and the [`Key`] that the checks, `config show`, the
//! generated page and the example file use. Every crate declares its own sections; `settings` composes them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::units::{Secret, Size};

/// One key of the configuration.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its path: `limits.max_body`, `upstream[].url` (a list of tables), `models.<ID>.target` (the user
    /// chooses the name).
    pub path: String,
    /// The form of one value.
    pub scalar: Scalar,
    /// One value or several.
    pub shape: Shape,
    /// The default as TOML; empty for a key without one.
    pub default: String,
    /// The effect of leaving it out; only where there is no default.
    pub unset: &'static str,
    /// True when the section needs the key.
    pub required: bool,
    /// True when the value is never shown.
    pub secret: bool,
    /// Its purpose, for the page and the example file.
    pub meaning: &'static str,
    /// A value as TOML.
    pub example: String,
}

/// The mistake in a text that should have some form.
pub type FormError = Box<dyn std::error::Error + Send + Sync>;

/// The form of one value.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// Text, not empty where it is a value of its own.
    Text,
    /// A path, in which a leading `~/` means the home directory.
    Path,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// A whole number with this minimum.
    Count(u64),
    /// A number in this range.
    Number(f64, f64),
    /// A duration with its unit; `true` permits zero.
    Duration(bool),
    /// A size with its unit, not zero.
    Size,
    /// An `http` or `https` URL.
    HttpUrl,
    /// Text in a form that has a name and a check, which says what is wrong.
    Form(&'static str, fn(&str) -> Result<(), FormError>),
    /// Any value, tables included.
    Any,
}

/// One value or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One.
    One,
    /// A list.
    List,
    /// A table whose keys the user chooses.
    Table,
}

/// Text for an HTTP header, such as a credential. Errors never repeat the text.
pub const HEADER: Scalar = Scalar::Form("text that fits into an HTTP header", |text| {
    let fits = |byte: u8| byte == b'\t' || (byte >= 32 && byte != 127);
    if text.is_empty() {
        Err("it is empty; write it or leave the key out".into())
    } else if text.bytes().all(fits) {
        Ok(())
    } else {
        Err("it holds a character that an HTTP header cannot carry, perhaps a line end".into())
    }
});

/// A type that a key's value can have.
pub trait Setting {
    /// The form of one value.
    const SCALAR: Scalar;
    /// One value or several.
    const SHAPE: Shape = Shape::One;
    /// True when the value is never shown.
    const IS_SECRET: bool = false;

    /// Returns the value as TOML; empty text for one that is not set.
    fn to_toml(&self) -> String;
}

/// A section of the configuration.
pub trait Section {
    /// Adds the section's keys under `path`.
    fn add_keys(path: &str, keys: &mut Vec<Key>);
}

impl<T: Section> Section for Vec<T> {
    fn add_keys(path: &str, keys: &mut Vec<Key>) {
        T::add_keys(path, keys);
    }
}

impl<T: Section> Section for BTreeMap<String, T> {
    fn add_keys(path: &str, keys: &mut Vec<Key>) {
        T::add_keys(path, keys);
    }
}

/// Joins the path of a section and a name in it; either may be empty.
pub fn join_path(section: &str, name: &str) -> String {
    match (section, name) {
        ("", name) | (name, "") => name.to_owned(),
        (section, name) => format!("{section}.{name}"),
    }
}

impl Key {
    /// Makes the key of a field with this default.
    pub fn new<T: Setting>(section: &str, field: &str, default: &T, meaning: &'static str) -> Self {
        let default = default.to_toml();
        Self {
            path: join_path(section, field),
            scalar: T::SCALAR,
            shape: T::SHAPE,
            example: default.clone(),
            default,
            unset: "",
            required: false,
            secret: T::IS_SECRET,
            meaning: meaning.trim_start(),
        }
    }

    /// Gives the key a name that differs from its field's.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.path = join_path(self.section_path(), name);
        self
    }

    /// Sets the example.
    #[must_use]
    pub fn with_example(mut self, example: &str) -> Self {
        example.clone_into(&mut self.example);
        self
    }

    /// Describes the effect of leaving out the key, which has no default.
    #[must_use]
    pub fn when_unset(mut self, unset: &'static str, example: &str) -> Self {
        self.default.clear();
        self.unset = unset;
        self.with_example(example)
    }

    /// Marks the key as necessary for its section.
    #[must_use]
    pub fn must_be_set(mut self, example: &str) -> Self {
        self.default.clear();
        self.required = true;
        self.with_example(example)
    }

    /// Sets the least whole number.
    #[must_use]
    pub fn with_minimum(self, least: u64) -> Self {
        self.with_form(Scalar::Count(least))
    }

    /// Sets the range of a number.
    #[must_use]
    pub fn with_range(self, least: f64, most: f64) -> Self {
        self.with_form(Scalar::Number(least, most))
    }

    /// Permits a duration of zero.
    #[must_use]
    pub fn allow_zero(self) -> Self {
        self.with_form(Scalar::Duration(true))
    }

    /// Replaces the form that follows from the field's type.
    #[must_use]
    pub fn with_form(mut self, scalar: Scalar) -> Self {
        self.scalar = scalar;
        self
    }

    /// Returns true when the value is written as text, so that a value from the environment is taken
    /// literally.
    pub fn is_text(&self) -> bool {
        let other = matches!(self.scalar, Scalar::Switch | Scalar::Count(_) | Scalar::Number(..));
        self.shape == Shape::One && !other
    }

    /// Returns the key's own name: the last part of its path.
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// Returns the path of the key's section; empty for the top.
    pub fn section_path(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

/// Quotes text as a TOML string.
fn quote_toml(text: &str) -> String {
    format!("{text:?}")
}

impl Setting for String {
    const SCALAR: Scalar = Scalar::Text;

    fn to_toml(&self) -> String {
        quote_toml(self)
    }
}

impl Setting for PathBuf {
    const SCALAR: Scalar = Scalar::Path;

    fn to_toml(&self) -> String {
        quote_toml(&self.display().to_string())
    }
}

impl Setting for Secret {
    const SCALAR: Scalar = HEADER;
    const IS_SECRET: bool = true;

    fn to_toml(&self) -> String {
        quote_toml("***")
    }
}

impl Setting for Size {
    const SCALAR: Scalar = Scalar::Size;

    fn to_toml(&self) -> String {
        quote_toml(&self.to_string())
    }
}

impl Setting for Duration {
    const SCALAR: Scalar = Scalar::Duration(false);

    fn to_toml(&self) -> String {
        let millis = self.as_millis();
        let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let whole = units.into_iter().find(|(_, unit)| millis != 0 && millis.is_multiple_of(*unit));
        let (unit, length) = whole.unwrap_or(if millis == 0 { ("s", 1_000) } else { ("ms", 1) });
        quote_toml(&format!("{}{unit}", millis / length))
    }
}

impl Setting for bool {
    const SCALAR: Scalar = Scalar::Switch;

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for f64 {
    const SCALAR: Scalar = Scalar::Number(f64::MIN, f64::MAX);

    fn to_toml(&self) -> String {
        format!("{self:?}")
    }
}

macro_rules! count_settings {
    ($($number:ty)*) => {$(
        impl Setting for $number {
            const SCALAR: Scalar = Scalar::Count(1);

            fn to_toml(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

count_settings!(u16 u32 u64 usize);

impl<T: Setting> Setting for Option<T> {
    const SCALAR: Scalar = T::SCALAR;
    const SHAPE: Shape = T::SHAPE;
    const IS_SECRET: bool = T::IS_SECRET;

    fn to_toml(&self) -> String {
        self.as_ref().map(Setting::to_toml).unwrap_or_default()
    }
}

impl<T: Setting> Setting for Arc<T> {
    const SCALAR: Scalar = T::SCALAR;

    fn to_toml(&self) -> String {
        (**self).to_toml()
    }
}

impl<T: Setting> Setting for Vec<T> {
    const SCALAR: Scalar = T::SCALAR;
    const SHAPE: Shape = Shape::List;
    const IS_SECRET: bool = T::IS_SECRET;

    fn to_toml(&self) -> String {
        let entries: Vec<String> = self.iter().map(Setting::to_toml).collect();
        format!("[{}]", entries.join(", "))
    }
}

impl<T: Setting> Setting for BTreeMap<String, T> {
    const SCALAR: Scalar = T::SCALAR;
    const SHAPE: Shape = Shape::Table;
    const IS_SECRET: bool = T::IS_SECRET;

    fn to_toml(&self) -> String {
        let entries: Vec<String> =
            self.iter().map(|(name, value)| format!("{} = {}", quote_toml(name), value.to_toml())).collect();
        if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
    }
}

impl Setting for Value {
    const SCALAR: Scalar = Scalar::Any;

    fn to_toml(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Array(entries) => {
                let entries: Vec<String> = entries.iter().map(Setting::to_toml).collect();
                format!("[{}]", entries.join(", "))
            }
            Self::Object(fields) => {
                let field =
                    |(name, value): (&String, &Self)| format!("{} = {}", quote_toml(name), value.to_toml());
                format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
            }
            other => other.to_string(),
        }
    }
}

/// Implements [`Setting`] for a type that is written as text, with the name of its form.
#[macro_export]
macro_rules! text_setting {
    ($type:ty, $form:literal) => {
        impl $crate::settings::Setting for $type {
            const SCALAR: $crate::settings::Scalar =
                $crate::settings::Scalar::Form($form, |text| Ok(text.parse::<$type>().map(drop)?));

            fn to_toml(&self) -> String {
                format!("{:?}", self.to_string())
            }
        }
    };
}

/// Declares a section of the configuration: a struct, its `Default`, and its [`Section`].
///
/// A key is a field with its default and, where its type does not say enough, options: the methods of [`Key`]
/// that return a key. Its documentation is the text that users read. `sections` are fields that are sections
/// themselves, at their own name or at another path (`at("upstream[]")`; `at("")` for keys of this section).
/// `derived` fields are no keys.
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])?
                pub $field:ident : $type:ty = $default:expr $(, $option:ident($($value:expr),*))*;
            )*
            $(sections {$(
                $(#[doc = $section_doc:literal])* $(#[serde($($section_serde:tt)*)])?
                pub $section:ident : $section_type:ty = $section_default:expr $(, at($at:literal))?;
            )*})?
            $(derived {$(
                $(#[doc = $derived_doc:literal])*
                pub $derived:ident : $derived_type:ty = $derived_default:expr;
            )*})?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $doc])* $(#[serde($($serde)*)])? pub $field: $type,)*
            $($($(#[doc = $section_doc])* $(#[serde($($section_serde)*)])? pub $section: $section_type,)*)?
            $($($(#[doc = $derived_doc])* #[serde(skip)] pub $derived: $derived_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $($($section: $section_default,)*)?
                    $($($derived: $derived_default,)*)?
                }
            }
        }

        impl $crate::settings::Section for $name {
            fn add_keys(path: &str, keys: &mut Vec<$crate::settings::Key>) {
                $(
                    let key = $crate::settings::Key::new(
                        path, stringify!($field), &Self::default().$field, concat!($($doc),*),
                    );
                    keys.push(key$(.$option($($value),*))*);
                )*
                $($(
                    let path_below = $crate::settings::join_path(
                        path, [$($at,)? stringify!($section)][0],
                    );
                    <$section_type as $crate::settings::Section>::add_keys(&path_below, keys);
                )*)?
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_written_as_people_write_them() {
        let check = |value: &dyn Fn() -> String, expected: &str| assert_eq!(value(), expected);
        for (millis, expected) in [
            (0, "\"0s\""),
            (250, "\"250ms\""),
            (90_000, "\"90s\""),
            (120_000, "\"2m\""),
            (86_400_000 * 90, "\"90d\""),
        ] {
            check(&|| Duration::from_millis(millis).to_toml(), expected);
        }
        check(&|| Size::mib(1024).to_toml(), "\"1GiB\"");
        check(&|| 5.0_f64.to_toml(), "5.0");
        check(&|| vec!["a".to_owned(), "b".to_owned()].to_toml(), "[\"a\", \"b\"]");
        check(&|| None::<u32>.to_toml(), "");
    }
}
