//! Serde serializer for the subset of postcard that messages use.

use serde::Serialize;
use serde::ser::{
    Impossible, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, Serializer,
};

use super::Unsuitable;

/// Serializer that writes into a slice. After an overflow nothing more is written, and [`Self::finish`]
/// returns `None`.
pub struct Writer<'a> {
    out: &'a mut [u8],
    /// Number of bytes written; `None` after an overflow.
    length: Option<usize>,
}

impl<'a> Writer<'a> {
    /// Creates a serializer at the start of `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, length: Some(0) }
    }

    /// Returns the number of bytes written, or `None` after an overflow.
    pub fn finish(self) -> Option<usize> {
        self.length
    }

    /// Writes a number. Not inlined on a device, so that the firmware contains one copy for each type of
    /// number instead of one for each field.
    #[cfg_attr(target_os = "none", inline(never))]
    fn number<T: Serialize>(&mut self, value: T) {
        self.length = self.length.and_then(|length| {
            let written = postcard::to_slice(&value, self.out.get_mut(length..)?).ok()?;
            Some(length + written.len())
        });
    }
}

/// Result of writing a value.
type Written = Result<(), Unsuitable>;

/// Implements the serialisation of numbers. A varint has the same bytes for every integer type, so u16 uses
/// the code of u32.
macro_rules! numbers {
    ($($serialize:ident $own:ty => $written:ty,)*) => {
        $(#[inline] fn $serialize(self, value: $own) -> Written {
            self.number::<$written>(value.into());
            Ok(())
        })*
    };
}

/// Rejects the types that messages do not contain.
macro_rules! unsuitable {
    ($($serialize:ident $own:ty,)*) => {
        $(#[inline] fn $serialize(self, _value: $own) -> Written {
            Err(Unsuitable)
        })*
    };
}

impl Serializer for &mut Writer<'_> {
    type Ok = ();
    type Error = Unsuitable;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Impossible<(), Unsuitable>;
    type SerializeTupleVariant = Impossible<(), Unsuitable>;
    type SerializeMap = Impossible<(), Unsuitable>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    numbers! {
        serialize_u8 u8 => u8,
        serialize_u16 u16 => u32,
        serialize_u32 u32 => u32,
        serialize_u64 u64 => u64,
        serialize_f32 f32 => f32,
    }

    unsuitable! {
        serialize_bool bool,
        serialize_i8 i8,
        serialize_i16 i16,
        serialize_i32 i32,
        serialize_i64 i64,
        serialize_f64 f64,
        serialize_char char,
        serialize_str &str,
        serialize_bytes &[u8],
    }

    #[inline]
    fn serialize_unit_variant(self, _name: &'static str, index: u32, _variant: &'static str) -> Written {
        self.serialize_u32(index)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Written {
        self.number(index);
        value.serialize(self)
    }

    #[inline]
    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Self, Unsuitable> {
        Ok(self)
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> Result<Self, Unsuitable> {
        self.number(index);
        Ok(self)
    }

    #[inline]
    fn serialize_seq(self, length: Option<usize>) -> Result<Self, Unsuitable> {
        self.number(length.and_then(|length| u32::try_from(length).ok()).ok_or(Unsuitable)?);
        Ok(self)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, _value: &T) -> Written {
        Err(Unsuitable)
    }

    #[inline]
    fn serialize_none(self) -> Written {
        Err(Unsuitable)
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, _value: &T) -> Written {
        Err(Unsuitable)
    }

    #[inline]
    fn serialize_unit(self) -> Written {
        Err(Unsuitable)
    }

    #[inline]
    fn serialize_unit_struct(self, _name: &'static str) -> Written {
        Err(Unsuitable)
    }

    #[inline]
    fn serialize_tuple(self, _length: usize) -> Result<Self, Unsuitable> {
        Ok(self)
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        _name: &'static str,
        _length: usize,
    ) -> Result<Self::SerializeTupleStruct, Unsuitable> {
        Err(Unsuitable)
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> Result<Self::SerializeTupleVariant, Unsuitable> {
        Err(Unsuitable)
    }

    #[inline]
    fn serialize_map(self, _length: Option<usize>) -> Result<Self::SerializeMap, Unsuitable> {
        Err(Unsuitable)
    }

    #[inline]
    fn collect_str<T: core::fmt::Display + ?Sized>(self, _value: &T) -> Written {
        Err(Unsuitable)
    }
}

impl SerializeSeq for &mut Writer<'_> {
    type Ok = ();
    type Error = Unsuitable;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        value.serialize(&mut **self)
    }

    #[inline]
    fn end(self) -> Written {
        Ok(())
    }
}

impl SerializeTuple for &mut Writer<'_> {
    type Ok = ();
    type Error = Unsuitable;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        value.serialize(&mut **self)
    }

    #[inline]
    fn end(self) -> Written {
        Ok(())
    }
}

impl SerializeStruct for &mut Writer<'_> {
    type Ok = ();
    type Error = Unsuitable;

    #[inline]
    fn serialize_field<T: Serialize + ?Sized>(&mut self, _name: &'static str, value: &T) -> Written {
        value.serialize(&mut **self)
    }

    #[inline]
    fn end(self) -> Written {
        Ok(())
    }
}

impl SerializeStructVariant for &mut Writer<'_> {
    type Ok = ();
    type Error = Unsuitable;

    #[inline]
    fn serialize_field<T: Serialize + ?Sized>(&mut self, _name: &'static str, value: &T) -> Written {
        value.serialize(&mut **self)
    }

    #[inline]
    fn end(self) -> Written {
        Ok(())
    }
}
