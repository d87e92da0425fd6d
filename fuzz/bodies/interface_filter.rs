//! The text that chooses network interfaces.

use annulus_transports::interface::Filter;

/// Any text is either refused, or a filter that reads the same when it is written and read again.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(filter) = Filter::parse(&text) else { return };
    let written = filter.to_string();
    let again = Filter::parse(&written).expect("what a filter writes is a filter");
    assert_eq!(filter, again);

    // Each name that stands in the text is chosen, or, after `^`, left out.
    let exclude = written.starts_with('^');
    for name in written.trim_start_matches(['^', '=']).split(',') {
        assert_eq!(filter.matches(name), !exclude, "{name:?} by {written}");
    }
}
