"""A window that shows frames, and in which a box can be drawn with the mouse."""

import time
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from ...io.images import to_image
from ...io.video import Box

_HINT = "give --box X Y W H instead of drawing it, in pixels or in fractions of the frame"


class Window(AbstractContextManager["Window"]):
    """Shows frames and lets the user draw the first box. q, Escape and the close button close it."""

    def __init__(self, title: str, image: Tensor) -> None:
        try:
            import tkinter
        except ModuleNotFoundError as error:
            raise OSError(f"a window needs tkinter, which this Python was built without; {_HINT}") from error
        try:
            self.root = tkinter.Tk()
        except tkinter.TclError as error:
            raise OSError(f"a window needs a screen ({error}); {_HINT}") from error
        _, height, width = image.shape
        screen = 0.9 * self.root.winfo_screenwidth() / width, 0.85 * self.root.winfo_screenheight() / height
        self.zoom, self.title = min(1.0, *screen), title
        width, height = round(width * self.zoom), round(height * self.zoom)
        self.canvas = tkinter.Canvas(self.root, width=width, height=height, highlightthickness=0)
        self.canvas.pack()
        self.photo = tkinter.PhotoImage(master=self.root)
        self.canvas.create_image(0, 0, anchor="nw", image=self.photo)
        self.open = True
        self.root.protocol("WM_DELETE_WINDOW", self.close)
        for key in ("q", "<Escape>"):
            self.root.bind(key, self.close)

    def __exit__(self, *_: object) -> None:
        self.root.destroy()

    def close(self, _: object = None) -> None:
        """Close at the next frame."""
        self.open = False

    def show(self, image: Tensor) -> bool:
        """Show a frame, uint8 [3, H, W]; return whether the window is still open."""
        shown = to_image(image)
        if self.zoom < 1:
            shown = shown.resize((int(self.canvas["width"]), int(self.canvas["height"])))
        self.photo.configure(data=b"P6 %d %d 255\n" % shown.size + shown.tobytes(), format="PPM")
        self.root.title(self.title)
        self.root.update()
        return self.open

    def drawn_box(self, image: Tensor) -> Box | None:
        """Return the box that the user draws and confirms by Enter; None if the window is closed instead."""
        self.show(image)
        self.root.title("draw a box around the object, then press Enter")
        corners: list[int] = []
        confirmed: list[Box] = []
        line = self.canvas.create_rectangle(0, 0, 0, 0, outline="#00dc00", width=2)

        def press(event: Any) -> None:
            corners[:] = [event.x, event.y, event.x, event.y]

        def drag(event: Any) -> None:
            corners[2:] = [event.x, event.y]
            self.canvas.coords(line, *corners)

        def confirm(_: object) -> None:
            left, right = sorted(corners[::2]) or (0, 0)
            top, bottom = sorted(corners[1::2]) or (0, 0)
            if right > left and bottom > top:
                x, y, w, h = (side / self.zoom for side in (left, top, right - left, bottom - top))
                confirmed.append((x, y, w, h))

        self.canvas.bind("<Button-1>", press)
        self.canvas.bind("<B1-Motion>", drag)
        for key in ("<Return>", "<KP_Enter>"):
            self.root.bind(key, confirm)
        while self.open and not confirmed:
            self.root.update()
            time.sleep(0.01)
        self.canvas.delete(line)
        return confirmed[0] if confirmed else None
