//! Parser of the tensor names in adapter files, as the PEFT library of Hugging Face writes them.

use super::Fault;
use super::limits::NAME_MAX;
use super::role::Role;

/// Parses a tensor name into its role and, for a factor, the name that both factors of the pair share: the
/// module, with suffixes ` (embedding)` and ` (ADAPTER)`. The names of down factors are
/// `MODULE.lora_A.weight`, `MODULE.lora_A.NAME.weight` (the name in memory), `MODULE.lora_embedding_A` and
/// `MODULE.lora_embedding_A.NAME`. Up factors have B instead of A.
///
/// # Errors
/// [`Fault::NameTooLong`]; [`Fault::UnsupportedLora`] for any other name with a part `lora_*`, because
/// averaging such a tensor might be wrong.
pub fn parse_tensor_name(name: &str) -> Result<(Role, String), Fault> {
    if name.len() > NAME_MAX {
        return Err(Fault::NameTooLong { length: name.len() });
    }
    let parts: Vec<&str> = name.split('.').collect();
    let Some(index) = parts.iter().position(|part| part.starts_with("lora_")) else {
        return Ok((Role::Saved, String::new()));
    };
    let (module, factor) = parts.split_at(index);
    let (role, is_embedding, suffix) = match factor {
        ["lora_A", suffix @ ..] => (Role::Down, false, suffix),
        ["lora_B", suffix @ ..] => (Role::Up, false, suffix),
        ["lora_embedding_A", suffix @ ..] => (Role::Down, true, suffix),
        ["lora_embedding_B", suffix @ ..] => (Role::Up, true, suffix),
        _ => return Err(Fault::UnsupportedLora),
    };
    let adapter = match (is_embedding, suffix) {
        (false, ["weight"]) | (true, []) => None,
        (false, [adapter, "weight"]) | (true, [adapter]) => Some(*adapter),
        _ => return Err(Fault::UnsupportedLora),
    };
    let mut pair = module.join(".");
    if is_embedding {
        pair.push_str(" (embedding)");
    }
    if let Some(adapter) = adapter {
        pair.push_str(&format!(" ({adapter})"));
    }
    Ok((role, pair))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{NAME_MAX, Role, parse_tensor_name};

    #[test]
    fn factor_names_give_role_and_module() {
        let query = "base_model.model.bert.encoder.layer.0.attention.self.query";
        for (suffix, role, pair) in [
            (".lora_A.weight", Role::Down, query.to_owned()),
            (".lora_B.weight", Role::Up, query.to_owned()),
            (".lora_A.default.weight", Role::Down, format!("{query} (default)")),
            (".lora_B.default.weight", Role::Up, format!("{query} (default)")),
            (".lora_embedding_A", Role::Down, format!("{query} (embedding)")),
            (".lora_embedding_B.default", Role::Up, format!("{query} (embedding) (default)")),
        ] {
            assert_eq!(parse_tensor_name(&format!("{query}{suffix}")).unwrap(), (role, pair));
        }
        for saved in ["base_model.model.classifier.weight", "score", "", ".", "a.b.bias", "my_lora_A.weight"]
        {
            assert_eq!(parse_tensor_name(saved).unwrap(), (Role::Saved, String::new()), "{saved:?}");
        }
    }

    #[test]
    fn unsupported_lora_tensors_are_refused() {
        for suffix in [
            ".lora_magnitude_vector.weight",
            ".lora_A.bias",
            ".lora_B.bias",
            ".lora_A",
            ".lora_A.a.b.weight",
            ".lora_C.weight",
            ".lora_embedding_A.a.b",
            ".lora_",
        ] {
            assert!(parse_tensor_name(&format!("model{suffix}")).is_err(), "{suffix}");
        }
        assert!(parse_tensor_name(&"n".repeat(NAME_MAX)).is_ok());
        assert!(parse_tensor_name(&"n".repeat(NAME_MAX + 1)).is_err());
    }
}
