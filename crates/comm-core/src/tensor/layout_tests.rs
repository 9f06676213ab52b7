use super::*;

#[test]
fn no_dimension_is_one_element_and_a_zero_is_none() {
    let scalar = Layout::contiguous(&[]).unwrap();
    assert_eq!((scalar.numel(), scalar.span(), scalar.is_contiguous()), (1, 0..1, true));
    assert_eq!(scalar.position(&[]).unwrap(), 0);
    let empty = Layout::contiguous(&[3, 0, 2]).unwrap();
    assert_eq!((empty.numel(), empty.span(), empty.is_contiguous()), (0, 0..0, true));
    assert_eq!(empty.strides(), &[2, 2, 1]);
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let half = 1usize << 32;
    assert!(Layout::contiguous(&[half, half]).is_err());
    assert!(Layout::contiguous(&[half, half / 2]).is_err(), "2^63 elements");
    assert!(Layout::contiguous(&[half, half / 4]).is_ok());
    assert!(Layout::contiguous(&[usize::MAX]).is_err());
    assert!(Layout::contiguous(&[isize::MAX as usize]).is_ok());
    // Zeros do not hide sizes whose strides would not fit.
    for shape in [[0, half, half], [half, 0, half], [half, half, 0]] {
        assert!(matches!(Layout::contiguous(&shape), Err(TensorError::Overflow { .. })), "{shape:?}");
    }
    assert!(matches!(Layout::contiguous(&[1; 17]), Err(TensorError::TooManyDims { dims: 17, .. })));
    assert!(Layout::contiguous(&[1; 16]).is_ok());
    assert!(Layout::contiguous(&[1]).unwrap().expand(&[half, half]).is_err());
}

#[test]
fn strides_and_offsets_that_do_not_fit_are_errors() {
    for (shape, strides, offset) in [
        (vec![3], vec![isize::MAX], 0),
        (vec![3], vec![isize::MIN], 0),
        (vec![2], vec![isize::MIN], isize::MAX as usize),
        (vec![2, 2], vec![isize::MAX, isize::MAX], 0),
        (vec![2], vec![1], isize::MAX as usize),
        (vec![1], vec![1], usize::MAX),
        (vec![1], vec![1], isize::MAX as usize),
        (vec![0], vec![1], usize::MAX),
        (vec![3], vec![-1], 1),
    ] {
        assert!(Layout::new(&shape, &strides, offset).is_err(), "{shape:?} {strides:?} {offset}");
    }
    assert!(matches!(Layout::new(&[2], &[1, 1], 0), Err(TensorError::Length { .. })));
    // Strides that are never walked may be anything, and views of them must not trip over it.
    let odd = Layout::new(&[1, 0], &[isize::MIN, isize::MIN], 0).unwrap();
    odd.flip(0).unwrap();
    odd.flip(1).unwrap();
    odd.unsqueeze(0).unwrap().unsqueeze(3).unwrap();
    odd.step(1, usize::MAX).unwrap();
    odd.expand(&[7, 5, 0]).unwrap();
    let one = Layout::new(&[1], &[isize::MIN], 3).unwrap();
    assert_eq!(one.reshape(&[]).unwrap().position(&[]).unwrap(), 3);
    assert_eq!(one.step(0, usize::MAX).unwrap().span(), 3..4);
    let wide = Layout::new(&[2, 0], &[isize::MIN, 1], 0).unwrap();
    assert!(wide.flip(0).is_err());
    assert!(wide.step(0, 1).is_ok());
    assert!(Layout::new(&[2, 0], &[1 << 40, 1], 0).unwrap().step(0, 1 << 40).is_ok());
}

#[test]
fn positions_past_2_to_31_are_right_without_any_memory() {
    let n = (1usize << 31) + 7;
    let a = Layout::contiguous(&[3, n, 2]).unwrap();
    assert_eq!(a.numel(), 6 * n);
    assert_eq!(a.position(&[2, n - 1, 1]).unwrap(), 6 * n - 1);
    let b = a.narrow(1, n - 2, 2).unwrap().flip(0).unwrap().transpose(0, 2).unwrap();
    assert_eq!(b.shape(), &[2, 2, 3]);
    assert_eq!(b.position(&[1, 0, 0]).unwrap(), 2 * 2 * n + (n - 2) * 2 + 1);
    assert_eq!(b.span().end, 6 * n);
    let c = a.reshape(&[6 * n]).unwrap().step(0, n).unwrap();
    assert_eq!(c.numel(), 6);
    assert_eq!(c.position(&[5]).unwrap(), 5 * n);

    let wide = Layout::contiguous(&[1, 1]).unwrap().expand(&[n, n]).unwrap();
    assert_eq!(wide.numel(), n * n);
    assert_eq!(wide.span(), 0..1);
    assert_eq!(wide.position(&[n - 1, n - 1]).unwrap(), 0);
    assert_eq!(wide.flip(0).unwrap().reshape(&[n * n]).unwrap().strides(), &[0]);
    assert!(Layout::contiguous(&[1]).unwrap().expand(&[n, n, 4]).is_err());
}

#[test]
fn wrong_arguments_say_what_was_wrong() {
    let a = Layout::contiguous(&[2, 3]).unwrap();
    assert!(matches!(a.narrow(2, 0, 1), Err(TensorError::NoSuchDim { dim: 2, dims: 2, .. })));
    assert!(matches!(a.narrow(1, 2, 2), Err(TensorError::OutOfBounds { size: 3, .. })));
    assert!(a.narrow(1, usize::MAX, 2).is_err());
    assert!(a.narrow(1, 3, 0).is_ok());
    assert!(a.narrow(1, 4, 0).is_err());
    assert!(a.select(0, 2).is_err());
    assert!(a.step(0, 0).is_err());
    assert!(a.flip(2).is_err());
    assert!(a.transpose(0, 2).is_err());
    assert!(a.permute(&[0, 0]).is_err());
    assert!(a.permute(&[0]).is_err());
    assert!(a.permute(&[0, 1, 1]).is_err());
    assert!(a.squeeze(0).is_err());
    assert!(a.unsqueeze(3).is_err());
    assert!(a.reshape(&[7]).is_err());
    assert!(a.expand(&[3]).is_err());
    assert!(a.expand(&[4, 3]).is_err());
    assert!(a.position(&[0]).is_err());
    assert!(a.position(&[0, 3]).is_err());
    let e = a.transpose(0, 1).unwrap().reshape(&[6]).unwrap_err().to_string();
    assert!(e.contains("[3, 2]") && e.contains("[6]"), "{e}");
}

#[test]
fn empty_views_stay_inside_the_memory() {
    let a = Layout::contiguous(&[4, 10]).unwrap().transpose(0, 1).unwrap();
    let end = a.narrow(0, 10, 0).unwrap().narrow(1, 4, 0).unwrap();
    assert_eq!(end.span(), 0..0);
    assert_eq!(end.flip(0).unwrap().step(1, 3).unwrap().reshape(&[7, 0]).unwrap().span(), 0..0);
}

#[test]
fn reshape_keeps_strides_where_it_can() {
    let a = Layout::contiguous(&[6, 4]).unwrap();
    let flipped = a.flip(0).unwrap().flip(1).unwrap();
    assert_eq!(flipped.reshape(&[2, 12]).unwrap().strides(), &[-12, -1]);
    assert_eq!(a.narrow(1, 0, 2).unwrap().reshape(&[2, 3, 2, 1]).unwrap().strides()[..3], [12, 4, 1]);
    assert!(a.narrow(1, 0, 2).unwrap().reshape(&[12]).is_err());
    assert!(a.narrow(1, 0, 3).unwrap().reshape(&[9, 2]).is_err());
    assert_eq!(a.expand(&[5, 6, 4]).unwrap().reshape(&[5, 24]).unwrap().strides(), &[0, 1]);
    assert_eq!(Layout::contiguous(&[]).unwrap().reshape(&[1, 1]).unwrap().shape(), &[1, 1]);
}

#[test]
fn a_layout_crosses_the_wire_and_a_forged_one_does_not() {
    let a = Layout::contiguous(&[6, 4]).unwrap().flip(0).unwrap();
    let bytes = crate::wire::encode(&a).unwrap();
    assert_eq!(crate::wire::decode::<Layout>(&bytes).unwrap(), a);
    for (shape, strides, offset) in
        [(vec![3usize], vec![-1isize], 1usize), (vec![1; 17], vec![1; 17], 0), (vec![1], vec![], 0)]
    {
        let bytes = crate::wire::encode(&(shape, strides, offset)).unwrap();
        assert!(crate::wire::decode::<Layout>(&bytes).is_err());
    }
}
