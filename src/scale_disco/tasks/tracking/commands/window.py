"""A window with frames in it, and a box drawn there with the mouse."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from ...io.video import Box


class Window:
    """A window with frames in it, in which the first box can be drawn; q, Escape and its own button close it."""

    def __init__(self, title: str, image: Tensor) -> None:
        try:
            import tkinter
        except ModuleNotFoundError as error:
            raise OSError("--show needs tkinter, which this Python was built without") from error
        try:
            self.root = tkinter.Tk()
        except tkinter.TclError as error:
            raise OSError(f"--show needs a screen: {error}") from error
        _, height, width = image.shape
        room = 0.9 * self.root.winfo_screenwidth() / width, 0.85 * self.root.winfo_screenheight() / height
        self.zoom = min(1.0, *room)
        self.title = title
        self.canvas = tkinter.Canvas(
            self.root, width=round(width * self.zoom), height=round(height * self.zoom), highlightthickness=0
        )
        self.canvas.pack()
        self.picture = tkinter.PhotoImage(master=self.root)
        self.canvas.create_image(0, 0, anchor="nw", image=self.picture)
        self.open = True
        self.root.protocol("WM_DELETE_WINDOW", self.close)
        for key in ("q", "<Escape>"):
            self.root.bind(key, self.close)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.root.destroy()

    def close(self, _: object = None) -> None:
        """Ask for the end."""
        self.open = False

    def show(self, image: Tensor) -> bool:
        """Show a frame, uint8 [3, H, W]; whether the window is still wanted."""
        from PIL import Image

        shown = Image.fromarray(image.permute(1, 2, 0).numpy())
        if self.zoom < 1:
            shown = shown.resize((int(self.canvas["width"]), int(self.canvas["height"])))
        self.picture.configure(data=b"P6 %d %d 255\n" % shown.size + shown.tobytes(), format="PPM")
        self.root.title(self.title)
        self.root.update()
        return self.open

    def drawn_box(self, image: Tensor) -> Box | None:
        """The box that is drawn with the mouse and taken by Enter; None if the window is closed instead."""
        self.show(image)
        self.root.title("draw a box around the object, then press Enter")
        corners: list[int] = []
        taken: list[Box] = []
        line = self.canvas.create_rectangle(0, 0, 0, 0, outline="#00dc00", width=2)

        def press(event: Any) -> None:
            corners[:] = [event.x, event.y, event.x, event.y]

        def drag(event: Any) -> None:
            corners[2:] = [event.x, event.y]
            self.canvas.coords(line, *corners)

        def take(_: object) -> None:
            left, right = sorted(corners[::2]) or (0, 0)
            top, bottom = sorted(corners[1::2]) or (0, 0)
            if right > left and bottom > top:
                x, y, w, h = (side / self.zoom for side in (left, top, right - left, bottom - top))
                taken.append((x, y, w, h))

        for name, act in (("<Button-1>", press), ("<B1-Motion>", drag)):
            self.canvas.bind(name, act)
        for key in ("<Return>", "<KP_Enter>"):
            self.root.bind(key, take)
        while self.open and not taken:
            self.root.update()
            time.sleep(0.01)
        self.canvas.delete(line)
        return taken[0] if taken else None
