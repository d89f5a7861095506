//! Editing of lines with measured values. Each line is one JSON object, printed by a program on a board.

/// Adds the optimisation level as the first member.
pub fn with_level(line: &str, level: &str) -> String {
    let members = line.strip_prefix('{').unwrap_or(line);
    format!("{{\"opt_level\":\"{level}\",{members}")
}

/// Adds a value as the last member.
pub fn with_figure(line: &str, name: &str, value: u64) -> String {
    let members = line.strip_suffix('}').unwrap_or(line);
    format!("{members},\"{name}\":{value}}}")
}

/// Returns the members of a line that do not depend on the core: the sizes `d`, `k` (if present) and `m`, and
/// all members from `path` on except the cycles. Tests on the host print the same text. A line without these
/// members is returned unchanged.
pub fn problem_and_bits(line: &str) -> String {
    let line = match line.rfind(",\"cycles\":") {
        Some(start) => format!("{}}}", &line[..start]),
        None => line.to_owned(),
    };
    let (Some(sizes), Some(path)) = (find_sizes(&line), line.rfind("\"path\":")) else { return line };
    let end = line.rfind('}').unwrap_or(line.len());
    format!("{sizes}{}", &line[path..end])
}

/// Returns the part of [`problem_and_bits`] that identifies the problem, without the bits of the result.
pub fn problem_only(answer: &str) -> &str {
    let ends = ["representation", "update"].map(|name| answer.find(&format!(",\"{name}\"")));
    match ends.into_iter().flatten().min() {
        Some(end) => &answer[..end],
        None => answer,
    }
}

/// Finds the sizes in a line: `"d":1,"k":2,"m":3,` or `"d":1,"m":3,`.
fn find_sizes(line: &str) -> Option<&str> {
    let start = line.rfind("\"d\":")?;
    let mut end = start;
    for name in ["\"d\":", "\"k\":", "\"m\":"] {
        let Some(number) = line[end..].strip_prefix(name) else {
            if name == "\"k\":" {
                continue;
            }
            return None;
        };
        let digits = number.find(|c: char| !c.is_ascii_digit())?;
        if digits == 0 || !number[digits..].starts_with(',') {
            return None;
        }
        end += name.len() + digits + 1;
    }
    Some(&line[start..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_added_at_both_ends() {
        assert_eq!(
            with_figure(&with_level("{\"d\":1}", "3+s"), "cycles", 7),
            "{\"opt_level\":\"3+s\",\"d\":1,\"cycles\":7}"
        );
    }

    #[test]
    fn problem_leaves_core_figures_and_cycles_out() {
        let line = "{\"opt_level\":\"s\",\"core\":\"m0\",\"d\":20,\"k\":2,\"m\":20,\"instructions\":5,\"path\":\"i16\",\
                    \"representation\":\"ab\",\"head\":\"cd\",\"cycles\":9}";
        let answer = "\"d\":20,\"k\":2,\"m\":20,\"path\":\"i16\",\"representation\":\"ab\",\"head\":\"cd\"";
        assert_eq!(problem_and_bits(line), answer);
        assert_eq!(problem_only(answer), "\"d\":20,\"k\":2,\"m\":20,\"path\":\"i16\"");
    }

    #[test]
    fn width_may_be_absent_and_other_lines_stay() {
        assert_eq!(
            problem_and_bits("{\"d\":4,\"m\":5,\"x\":1,\"path\":\"a\",\"update\":\"b\"}"),
            "\"d\":4,\"m\":5,\"path\":\"a\",\"update\":\"b\""
        );
        for line in ["{\"d\":4,\"path\":\"a\"}", "{\"d\":4,\"m\":5}", "{\"d\":,\"m\":5,\"path\":1}", ""] {
            assert_eq!(problem_and_bits(line), line);
        }
    }
}
