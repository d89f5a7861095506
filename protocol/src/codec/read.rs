//! Serde deserializer for the subset of postcard that messages use.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

use super::Unsuitable;

/// Deserializer that reads a slice. After the last byte, or after a malformed number, all further values are
/// zero and [`Self::finish`] returns `None`.
pub struct Reader<'de> {
    /// Unread bytes; `None` after an error.
    unread: Option<&'de [u8]>,
}

impl<'de> Reader<'de> {
    /// Creates a deserializer at the start of `bytes`.
    pub fn new(bytes: &'de [u8]) -> Self {
        Self { unread: Some(bytes) }
    }

    /// Returns the unread bytes, or `None` after an error.
    pub fn finish(self) -> Option<&'de [u8]> {
        self.unread
    }

    /// Reads a number. Not inlined on a device, so that the firmware contains one copy for each type of
    /// number instead of one for each field.
    #[cfg_attr(target_os = "none", inline(never))]
    fn number<T: Deserialize<'de> + Default>(&mut self) -> T {
        let read = self.unread.and_then(|bytes| postcard::take_from_bytes(bytes).ok());
        let (value, remaining) =
            read.map_or((T::default(), None), |(value, remaining)| (value, Some(remaining)));
        self.unread = remaining;
        value
    }
}

/// Implements the deserialisation of numbers.
macro_rules! numbers {
    ($($deserialize:ident $visit:ident,)*) => {
        $(#[inline] fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsuitable> {
            visitor.$visit(self.number())
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Unsuitable;

    numbers! {
        deserialize_u8 visit_u8,
        deserialize_u16 visit_u16,
        deserialize_u32 visit_u32,
        deserialize_u64 visit_u64,
        deserialize_f32 visit_f32,
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Unsuitable> {
        visitor.visit_seq(Elements { reader: self, remaining: length })
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsuitable> {
        let length = usize::try_from(self.number::<u32>()).map_err(|_| Unsuitable)?;
        visitor.visit_seq(Elements { reader: self, remaining: length })
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        visitor.visit_enum(self)
    }

    /// Always fails, because messages contain no other types.
    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Unsuitable> {
        Err(Unsuitable)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u128 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        tuple_struct map identifier ignored_any
    }
}

/// Access to the elements of a sequence, or the fields of a struct.
struct Elements<'a, 'de> {
    reader: &'a mut Reader<'de>,
    /// Number of remaining elements.
    remaining: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Unsuitable;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Unsuitable> {
        let Some(remaining) = self.remaining.checked_sub(1) else { return Ok(None) };
        self.remaining = remaining;
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = Unsuitable;
    type Variant = Self;

    #[inline]
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Unsuitable> {
        let variant: u32 = self.number();
        Ok((seed.deserialize(variant.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = Unsuitable;

    #[inline]
    fn unit_variant(self) -> Result<(), Unsuitable> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Unsuitable> {
        seed.deserialize(self)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Unsuitable> {
        self.deserialize_tuple(length, visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        self.deserialize_tuple(fields.len(), visitor)
    }
}
