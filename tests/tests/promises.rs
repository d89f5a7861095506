//! Upper limits of the figures that the pages promise of devices. `budgets.toml` has the measured figures, which the emulated boards and
//! the builds of firmware keep to 2 %; each regeneration may move them, but not over these limits.

use toml_edit::{DocumentMut, InlineTable, Value};

/// Rows of a list in `budgets.toml`.
struct Rows(DocumentMut, &'static str);

impl Rows {
    fn read(list: &'static str) -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/budgets.toml");
        Self(std::fs::read_to_string(path).unwrap().parse().unwrap(), list)
    }

    fn iter(&self) -> impl Iterator<Item = &InlineTable> {
        self.0[self.1].as_array().unwrap().iter().map(|row| row.as_inline_table().unwrap())
    }

    /// Returns the only row with these fields.
    fn find(&self, fields: &[(&str, Value)]) -> &InlineTable {
        let is_same = |row: &&InlineTable| {
            let text = |value: &Value| value.to_string().trim().to_owned();
            fields.iter().all(|(name, value)| row.get(name).map(text) == Some(text(value)))
        };
        let mut found = self.iter().filter(is_same);
        let row = found.next().unwrap_or_else(|| panic!("no {} with {fields:?}", self.1));
        assert!(found.next().is_none(), "two of {} with {fields:?}", self.1);
        row
    }
}

fn number(row: &InlineTable, name: &str) -> i64 {
    row.get(name).and_then(Value::as_integer).unwrap_or_else(|| panic!("no {name} in {row}"))
}

/// Instructions of a whole round: check of the representation, update, and gradient as it is sent.
#[test]
fn whole_rounds_take_few_instructions() {
    let rows = Rows::read("update");
    for (core, d, m, path, update, most) in [
        ("m4", 128, 32, "normal", "instructions", 122_000),
        ("m4", 128, 32, "normal", "gathered", 200_000),
        ("m4", 57, 35, "normal", "gathered", 280_000),
        ("m0", 128, 32, "i16", "instructions", 1_100_000),
    ] {
        let row = rows.find(&[
            ("core", core.into()),
            ("opt_level", "s".into()),
            ("d", d.into()),
            ("k", 8.into()),
            ("m", m.into()),
            ("path", path.into()),
        ]);
        let round = number(row, "verify") + number(row, update) + number(row, "emit");
        assert!(round <= most, "{core} ({d}, 8), {m} samples, {path}, {update}: {round}, at most {most}");
    }
}

/// Flash of the client for 64 features, in bytes.
#[test]
fn client_takes_little_flash() {
    let rows = Rows::read("flash");
    let flash = |program: &str, target: &str, shape: &str| {
        number(
            rows.find(&[
                ("program", program.into()),
                ("target", target.into()),
                ("opt_level", "s".into()),
                ("shape", shape.into()),
            ]),
            "flash",
        )
    };
    for (shape, most) in [("64-4-plain", 28_000), ("64-4-encryption", 34_000), ("64-4-flash-vsqrt", 40_000)] {
        let found = flash("least/client", "thumbv7em-none-eabihf", shape);
        assert!(found <= most, "{shape}: {found} bytes, at most {most}");
    }
    for target in ["thumbv6m-none-eabi", "thumbv7em-none-eabihf"] {
        let [in_c, in_rust] = ["least/interface", "least/run_time_sizes"]
            .map(|program| flash(program, target, "64-4-encryption"));
        assert!(in_c - in_rust <= 1_000, "{target}: the interface to C takes {} bytes", in_c - in_rust);
    }
}

/// Cycles of a Cortex-M0 in 50 ms at 16 MHz.
const CYCLES: i64 = 800_000;

/// A watchdog can be fed every 50 ms: by pauses within computations (400,000 instructions of two cycles), and between frames of up to
/// 2,048 bytes, whose sealing and opening have no pauses.
#[test]
fn cortex_m0_feeds_a_watchdog_every_50_ms() {
    let mut count = 0;
    for list in ["update", "power", "network"] {
        for row in Rows::read(list).iter().filter(|row| row.get("core").and_then(Value::as_str) == Some("m0"))
        {
            let stretch = number(row, "stretch");
            assert!(stretch <= CYCLES / 2, "{list}, {row}");
            count += 1;
        }
    }
    assert!(count > 10, "{count} figures of a Cortex-M0");
    let sealing = Rows::read("sealing");
    let is_of_m0 = |row: &&InlineTable| row.get("core").and_then(Value::as_str) == Some("m0");
    let rows: Vec<_> = sealing.iter().filter(is_of_m0).collect();
    assert!(!rows.is_empty(), "no figure of sealing on a Cortex-M0");
    for row in rows {
        // The lists have the bytes that a round sends; it receives nearly as many.
        for work in ["cycles_seal", "cycles_open"] {
            let cycles = number(row, work) * 2_048 / number(row, "up");
            assert!(cycles <= CYCLES, "{work}: {cycles} cycles for 2,048 bytes, at most {CYCLES}");
        }
    }
}
