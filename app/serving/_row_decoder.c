/* Lists of numbers in JSON into packed float64, see row_decoder.py, which has the same functions in Python.

   Numbers are rounded correctly: one of up to 19 digits w and a power of ten e with |e| <= 27 is w * 10**e in
   128 bits, rounded once to the nearest number, ties to even. Python's own function reads all others. Whatever
   is no list of exactly so many usable numbers gives None, and the decoder in Python says what is wrong.

   All text is that of a bytes object, which ends with a zero byte: no loop passes it. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 uint128;

enum {
    MAX_DIGITS = 19, /* 10**19 < 2**64 */
    MAX_POWER = 27,  /* 5**27 < 2**64 */
    MAX_EXACT = 22,  /* 10**22 is a float64 */
    MAX_EXPONENT = 100000,
    MAX_LENGTH = 400, /* of a number that Python reads */
};

static const double MAX_SQUARES = 1e199;
/* The sum of squares of a row. Beyond it the decoder in Python decides whether the row can be used. */

static const double POWERS_OF_TEN[MAX_EXACT + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static const uint64_t POWERS_OF_FIVE[MAX_POWER + 1] = {
    1ULL,
    5ULL,
    25ULL,
    125ULL,
    625ULL,
    3125ULL,
    15625ULL,
    78125ULL,
    390625ULL,
    1953125ULL,
    9765625ULL,
    48828125ULL,
    244140625ULL,
    1220703125ULL,
    6103515625ULL,
    30517578125ULL,
    152587890625ULL,
    762939453125ULL,
    3814697265625ULL,
    19073486328125ULL,
    95367431640625ULL,
    476837158203125ULL,
    2384185791015625ULL,
    11920928955078125ULL,
    59604644775390625ULL,
    298023223876953125ULL,
    1490116119384765625ULL,
    7450580596923828125ULL,
};

static const char *skip_space(const char *text)
{
    while (*text == ' ' || *text == '\n' || *text == '\t' || *text == '\r')
        text++;
    return text;
}

/* value * 2**exponent, rounded to 53 bits. value: at least 2**63. is_cut: whether the true value is larger. */
static double rounded(uint128 value, int exponent, int is_cut)
{
    uint64_t high = (uint64_t)(value >> 64);
    int length = high ? 128 - __builtin_clzll(high) : 64 - __builtin_clzll((uint64_t)value);
    int shift = length - 53;
    uint64_t kept = (uint64_t)(value >> shift);
    uint128 half = (uint128)1 << (shift - 1), below = value & ((half << 1) - 1);
    if (below > half || (below == half && (is_cut || (kept & 1))))
        kept++;
    return ldexp((double)kept, exponent + shift);
}

/* digits * 10**power, with |power| <= MAX_POWER. */
static double scaled(uint64_t digits, int power)
{
    if (digits < (uint64_t)1 << 53 && power >= -MAX_EXACT && power <= MAX_EXACT)
        return power < 0 ? (double)digits / POWERS_OF_TEN[-power] : (double)digits * POWERS_OF_TEN[power];
    if (digits == 0)
        return 0.0;
    int shift = __builtin_clzll(digits);
    digits <<= shift;
    if (power >= 0)
        return rounded((uint128)digits * POWERS_OF_FIVE[power], power - shift, 0);
    /* The quotient has at least 64 bits. */
    uint64_t divisor = POWERS_OF_FIVE[-power];
    uint128 dividend = (uint128)digits << 64;
    return rounded(dividend / divisor, power - shift - 64, dividend % divisor != 0);
}

/* The number in text[0:length], a number of JSON; HUGE_VAL if it cannot be used. */
static double read_by_python(const char *text, Py_ssize_t length)
{
    char copy[MAX_LENGTH + 1];
    if (length > MAX_LENGTH)
        return HUGE_VAL;
    memcpy(copy, text, (size_t)length);
    copy[length] = 0;
    double number = PyOS_string_to_double(copy, NULL, NULL);
    if (number == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return HUGE_VAL;
    }
    return number;
}

/* Read a number of JSON; returns where it ends, or NULL if there is none. */
static const char *read_number(const char *text, double *number)
{
    const char *start = text;
    int is_negative = *text == '-';
    text += is_negative;
    uint64_t digits = 0;
    const char *first = text;
    while (*text >= '0' && *text <= '9')
        digits = digits * 10 + (uint64_t)(*text++ - '0');
    Py_ssize_t n_digits = text - first;
    /* The integer -0 is 0. */
    if (n_digits == 1 && *first == '0' && *text != '.' && *text != 'e' && *text != 'E')
        is_negative = 0;
    if (n_digits == 0 || (n_digits > 1 && *first == '0'))
        return NULL;
    Py_ssize_t power = 0;
    if (*text == '.') {
        const char *fraction = ++text;
        while (*text >= '0' && *text <= '9')
            digits = digits * 10 + (uint64_t)(*text++ - '0');
        if (text == fraction)
            return NULL;
        power = fraction - text;
        n_digits -= power;
    }
    if (*text == 'e' || *text == 'E') {
        text++;
        int sign = *text == '-' ? -1 : 1, exponent = 0;
        text += *text == '-' || *text == '+';
        const char *start_of_exponent = text;
        while (*text >= '0' && *text <= '9') {
            if (exponent < MAX_EXPONENT)
                exponent = exponent * 10 + (*text - '0');
            text++;
        }
        if (text == start_of_exponent)
            return NULL;
        power += sign * exponent;
    }
    if (n_digits <= MAX_DIGITS && power >= -MAX_POWER && power <= MAX_POWER)
        *number = is_negative ? -scaled(digits, (int)power) : scaled(digits, (int)power);
    else
        *number = read_by_python(start, text - start);
    return text;
}

/* Read a list of n numbers into target; returns where it ends, or NULL if there is none of usable numbers. */
static const char *read_list(const char *text, Py_ssize_t n, double *target)
{
    double squares = 0.0;
    if (*text != '[')
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        text = read_number(skip_space(text + 1), &target[i]);
        if (text == NULL)
            return NULL;
        squares += target[i] * target[i];
        text = skip_space(text);
        if (*text != (i + 1 < n ? ',' : ']'))
            return NULL;
    }
    return squares < MAX_SQUARES ? text + 1 : NULL;
}

/* A new bytes object with n numbers for the list at text; NULL, perhaps with an error, if there is none. */
static PyObject *packed_list(const char **text, Py_ssize_t size, Py_ssize_t n)
{
    /* Each number takes two bytes of text, with what stands before or behind it. */
    if (n < 1 || n > size / 2)
        return NULL;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(double));
    if (packed == NULL)
        return NULL;
    *text = read_list(*text, n, (double *)PyBytes_AsString(packed));
    if (*text == NULL) {
        Py_DECREF(packed);
        return NULL;
    }
    return packed;
}

/* Whether an argument is a size; otherwise there is an error. */
static int read_size(PyObject *argument, Py_ssize_t *size)
{
    *size = PyLong_AsSsize_t(argument);
    return *size != -1 || !PyErr_Occurred();
}

static PyObject *none_or_error(void)
{
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *decode_row(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "decode_row(body, n) takes two arguments");
        return NULL;
    }
    Py_ssize_t n;
    if (!read_size(arguments[1], &n))
        return NULL;
    if (!PyBytes_Check(arguments[0]))
        Py_RETURN_NONE;
    const char *text = PyBytes_AsString(arguments[0]);
    Py_ssize_t size = PyBytes_Size(arguments[0]);
    const char *end = text + size;
    text = skip_space(text);
    if (*text != '{')
        Py_RETURN_NONE;
    text = skip_space(text + 1);
    if (strncmp(text, "\"x\"", 3) != 0)
        Py_RETURN_NONE;
    text = skip_space(text + 3);
    if (*text != ':')
        Py_RETURN_NONE;
    text = skip_space(text + 1);
    PyObject *packed = packed_list(&text, size, n);
    if (packed == NULL)
        return none_or_error();
    text = skip_space(text);
    if (*text == '}' && skip_space(text + 1) == end)
        return packed;
    Py_DECREF(packed);
    Py_RETURN_NONE;
}

static PyObject *decode_list(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "decode_list(text, start, n) takes three arguments");
        return NULL;
    }
    Py_ssize_t start, n;
    if (!read_size(arguments[1], &start) || !read_size(arguments[2], &n))
        return NULL;
    if (!PyBytes_Check(arguments[0]))
        Py_RETURN_NONE;
    const char *text = PyBytes_AsString(arguments[0]);
    Py_ssize_t size = PyBytes_Size(arguments[0]);
    if (start < 0 || start > size)
        Py_RETURN_NONE;
    const char *end = text + start;
    PyObject *packed = packed_list(&end, size - start, n);
    if (packed == NULL)
        return none_or_error();
    return Py_BuildValue("(Nn)", packed, (Py_ssize_t)(end - text));
}

static PyMethodDef methods[] = {
    {"decode_row", (PyCFunction)(void (*)(void))decode_row, METH_FASTCALL, NULL},
    {"decode_list", (PyCFunction)(void (*)(void))decode_list, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_row_decoder",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__row_decoder(void)
{
    return PyModuleDef_Init(&definition);
}
