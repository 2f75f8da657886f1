//! The tour of `respool demo`: its scenes, the client that plays them, and how they are shown.

mod client;
mod scenes;
mod show;

pub use client::{DemoReply, play_directly, play_through};
pub use scenes::{SCENES, Scene, tour_configuration};
pub use show::{Played, WELCOME, colour_of, explain_next, explain_serving, render_scene};
